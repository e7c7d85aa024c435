"""The name server's shell: its port, its timer, its start and stop. `cli/programs.py` runs it."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import replace
from pathlib import Path

from batonmq.common.clock import Clock, SystemClock
from batonmq.common.running_time import TICK_S, RunningTime
from batonmq.namesrv import handlers
from batonmq.namesrv.config import NamesrvConfig
from batonmq.namesrv.handlers import NameServer
from batonmq.namesrv.kv import KVConfig
from batonmq.namesrv.routes import BrokerKey, Notice, RouteTable
from batonmq.net import (
    Connection,
    Dispatcher,
    Interceptor,
    Limits,
    NetError,
    RemotingClient,
    RemotingServer,
)
from batonmq.net.tls import TlsConfig, client_tls, server_tls
from batonmq.protocol.headers.broker.replication import NotifyMinBrokerIdChange

log = logging.getLogger(__name__)

FIRST_SCAN_MS = 5_000
"""Time from the start to the first check for silent brokers, whatever the interval."""
SCAN_REST_MS = 100
"""Least time between two checks."""
DRAIN_MS = 1_000
"""How long a stop waits for requests in flight."""


class NamesrvService:
    """One name server: ``await start()``, ``port``, ``await stop()``."""

    def __init__(
        self,
        config: NamesrvConfig,
        *,
        clock: Clock | None = None,
        tls: TlsConfig | None = None,
        limits: Limits | None = None,
    ) -> None:
        """Raises `ConfigError` for TLS files that cannot be used."""
        self._running = RunningTime(clock if clock is not None else SystemClock())
        tls = tls if tls is not None else TlsConfig()
        routes = RouteTable()
        self.name_server = NameServer(
            config=config,
            routes=routes,
            kv=KVConfig(Path(config.kv_config_path)),
            running=self._running,
            notify=self._notify,
            scan_by=self._scan_by,
            started_ms=self._running.now_ms(),
            reconfigured=self._apply_config,
            writing=asyncio.Lock(),
        )
        self._apply_config()
        dispatcher = Dispatcher()
        dispatcher.intercept(Interceptor(closed=self._connection_closed))
        handlers.register(dispatcher, self.name_server)
        idle_ms = config.server_channel_max_idle_time_seconds * 1000
        self._server = RemotingServer(
            dispatcher,
            config.bind_address,
            config.listen_port,
            tls=server_tls(tls),
            limits=replace(limits if limits is not None else Limits(), idle_timeout_ms=idle_ms),
            key="listenPort",
        )
        self._client = RemotingClient(tls=client_tls(tls))
        self._scan_timer: asyncio.TimerHandle | None = None
        self._scan_ms = 0
        """When the timer is due, by the running time."""
        self._tick_timer: asyncio.TimerHandle | None = None
        self._outboxes: dict[str, deque[NotifyMinBrokerIdChange]] = {}
        self._senders: dict[str, asyncio.Task[None]] = {}

    @property
    def port(self) -> int:
        """The port that the name server listens on."""
        return self._server.port

    @property
    def ready_line(self) -> str:
        """What RocketMQ's name server prints when it is up; scripts wait for it."""
        address = f"{self.name_server.config.bind_address}:{self.port}"
        return f"The Name Server boot success. serializeType=JSON, address {address}"

    async def start(self) -> None:
        """Listen. Raises `OSError` if the port is not available, `ConfigError` for a broken kvConfig.json."""
        self.name_server.kv.load()
        self.name_server.started_ms = self._running.now_ms()
        await self._server.start()
        self._scan_in(FIRST_SCAN_MS)
        self._tick()

    async def stop(self) -> None:
        """Answer requests in flight, then close everything. Brokers stay registered at other name servers."""
        await self._server.stop(drain_ms=DRAIN_MS)
        for timer in (self._scan_timer, self._tick_timer):
            if timer is not None:
                timer.cancel()
        senders = list(self._senders.values())
        for task in senders:
            task.cancel()
        await asyncio.gather(*senders, return_exceptions=True)
        await self._client.close()

    def _apply_config(self) -> None:
        config, routes = self.name_server.config, self.name_server.routes
        routes.support_acting_master = config.support_acting_master
        routes.notify_min_broker_id = config.notify_min_broker_id_changed
        routes.delete_absent_topics = config.delete_topic_with_broker_registration

    def _tick(self) -> None:
        """Keep the running time running."""
        self._running.now_ms()
        self._tick_timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)

    # -- brokers that leave without a request --------------------------------------------------------------

    def _scan(self) -> None:
        routes = self.name_server.routes
        now_ms = self._running.now_ms()
        expired = routes.expired(now_ms)
        for key in expired:
            log.warning("broker at %s of %s is silent", key.address, key.cluster)
            connection = routes.connection(key)
            if isinstance(connection, Connection):
                connection.close()
        self._drop(expired)
        wait_ms = self.name_server.config.scan_not_active_broker_interval
        next_ms = routes.next_expiry()
        if next_ms is not None:
            # A slave may wait for this to act as master: not up to an interval later than need be.
            wait_ms = min(wait_ms, max(SCAN_REST_MS, next_ms + 1 - now_ms))
        self._scan_in(wait_ms)

    def _scan_in(self, wait_ms: int) -> None:
        if self._scan_timer is not None:
            self._scan_timer.cancel()
        self._scan_ms = self._running.now_ms() + wait_ms
        self._scan_timer = asyncio.get_running_loop().call_later(wait_ms / 1000, self._scan)

    def _scan_by(self, expires_ms: int) -> None:
        """Not later than a broker's timeout, which may be shorter than the timer's remaining time."""
        if expires_ms + 1 < self._scan_ms:
            self._scan_in(max(SCAN_REST_MS, expires_ms + 1 - self._running.now_ms()))

    def _connection_closed(self, connection: Connection) -> None:
        self._drop(self.name_server.routes.on_connection(connection))

    def _drop(self, keys: list[BrokerKey]) -> None:
        if keys:
            routes = self.name_server.routes
            self._notify(routes.unregister(routes.leaving(keys)))

    def _notify(self, notices: list[Notice]) -> None:
        for notice in notices:
            for address in notice.addresses:
                self._outboxes.setdefault(address, deque()).append(notice.header)
                if address not in self._senders:
                    self._senders[address] = asyncio.ensure_future(self._send_notices(address))

    async def _send_notices(self, address: str) -> None:
        """Send a broker its notices in order; the last one counts."""
        outbox = self._outboxes[address]
        try:
            while outbox:
                try:
                    await self._client.oneway(address, outbox.popleft())
                except NetError as error:
                    log.warning("could not notify a broker of the new lowest id of its broker set: %s", error)
        finally:
            del self._senders[address], self._outboxes[address]
