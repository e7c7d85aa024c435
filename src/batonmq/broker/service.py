"""The broker as a program: it opens the store, builds what the parts share, and runs the parts.

A start opens the store (recovery), restores the tables, listens and starts the parts; the last part gives
the broker its role. A stop withdraws the broker from controllers and name servers, waits for requests under
way, and closes ports, parts and store; all acknowledged messages are then on disk. Several brokers may run in
one process and on one event loop.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import random
import socket
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from batonmq.broker.auth_config import AuthConfig
from batonmq.broker.config import BrokerConfig
from batonmq.broker.context import Broker
from batonmq.broker.messages.acks import keys_without_effect
from batonmq.broker.messages.appender import Appender
from batonmq.broker.messages.redirects import Redirects
from batonmq.broker.monitoring.metrics import BrokerMetrics
from batonmq.broker.part import Part, overrides
from batonmq.broker.parts import PARTS
from batonmq.broker.replica.fixed_role import checked_role
from batonmq.broker.role import RoleState
from batonmq.broker.settings import Settings
from batonmq.broker.stats import BrokerStats
from batonmq.broker.tables.filters import FilterTable
from batonmq.broker.tables.mappings import MappingTable
from batonmq.broker.tables.offsets import OffsetTable
from batonmq.broker.tables.persistence import Persistence
from batonmq.broker.tables.subscriptions import SubscriptionTable
from batonmq.broker.tables.tables import Tables
from batonmq.broker.tables.topics import TopicTable
from batonmq.common import log as logs
from batonmq.common.addresses import local_ip
from batonmq.common.clock import Clock, SystemClock
from batonmq.common.config_values import changed_keys
from batonmq.common.threads import Threads, in_thread
from batonmq.ha.autoswitch.service import HAService
from batonmq.ha.classic.service import ClassicHAService
from batonmq.ha.config import HAConfig
from batonmq.ha.port import Replication
from batonmq.ha.security import security_of
from batonmq.net import Connection, Dispatcher, Interceptor, Limits, RemotingClient, RemotingServer
from batonmq.net.server import cannot_listen, check_free
from batonmq.net.tls import TlsConfig, client_tls, server_tls
from batonmq.store.config import FlushDiskType, StoreConfig
from batonmq.store.errors import StoreError
from batonmq.store.policy import StorePolicy
from batonmq.store.store import MessageStore

log = logging.getLogger(__name__)

P = TypeVar("P", bound=Part)

DRAIN_MS: Final = 5_000
"""Longest time that a stop waits for unanswered sends."""
FRAME_ROOM: Final = 1 << 20
"""Bytes of a frame beside the largest message."""
READERS: Final = 4
"""Threads for pulls that read from disk."""
VIP_PORT_DISTANCE: Final = 2
"""The VIP port is listenPort minus this."""
VIP_PORT_KEY: Final = f"listenPort - {VIP_PORT_DISTANCE}; vipChannelEnabled=false does without"
"""Where the VIP port is from, in error messages."""


class BrokerService:
    """One broker: ``await start()``, ``port``, ``await stop()``."""

    def __init__(
        self,
        config: BrokerConfig,
        store_config: StoreConfig,
        ha_config: HAConfig,
        *,
        auth: AuthConfig | None = None,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        tls: TlsConfig | None = None,
        limits: Limits | None = None,
        config_path: Path | None = None,
        client: RemotingClient | None = None,
        readers: Executor | None = None,
        neighbours: Callable[[], Iterable[Broker]] = tuple,
        log_identity: str = "",
    ) -> None:
        """`auth`: access control; None: none. `config_path`: the configuration file; `updateBrokerConfig`
        rewrites it. Brokers of one process may share `client` and `readers` (`Broker.client`,
        `Broker.readers`), which are not closed with a broker; None: its own. `neighbours` returns the other
        brokers of the process. `log_identity` marks this broker's log lines.

        Raises `ConfigError` for values that do not fit together.
        """
        if not config.broker_name:
            config = replace(config, broker_name=socket.gethostname())
        if not config.broker_ip1:
            config = replace(config, broker_ip1=local_ip())
        if not config.broker_ip2:
            config = replace(config, broker_ip2=config.broker_ip1)
        config = checked_role(config)
        self._settings = Settings(config, store_config, ha_config, config_path, auth)
        self._clock = clock if clock is not None else SystemClock()
        self._rng = rng if rng is not None else random.Random()
        self._tls = tls if tls is not None else TlsConfig()
        self._ha_security = security_of(ha_config, self._tls)
        self._limits = limits if limits is not None else Limits()
        self._own_client = client is None
        if client is None:
            signer = self._settings.auth.inner_credentials
            client = RemotingClient(tls=client_tls(self._tls), credentials=signer)
        self._client = client
        self._own_readers = readers is None
        self._readers = readers if readers is not None else Threads(READERS, "batonmq-read")
        self._neighbours = neighbours
        self._log_identity = log_identity
        self._dispatcher = Dispatcher()
        self._dispatcher.intercept(Interceptor(closed=self._connection_closed))
        self._servers: list[RemotingServer] = []
        self._parts: list[Part] = []
        self.broker: Broker
        """Set once the broker starts."""
        self.failed: asyncio.Future[BaseException]
        """Resolved with the cause when the broker must be stopped. Set when the broker starts."""
        self.metrics: BrokerMetrics | None = None
        """Set once the broker starts."""

    @property
    def port(self) -> int:
        """The client port on which the broker listens."""
        return self._servers[0].port

    @property
    def ready_line(self) -> str:
        """The line that RocketMQ's broker prints when it is up; scripts wait for it."""
        config = self._settings.broker
        line = f"The broker[{config.broker_name}, {self.broker.address}] boot success. serializeType=JSON"
        return f"{line} and name server is {config.namesrv_addr}" if config.namesrv_addr else line

    def part(self, kind: type[P]) -> P:
        """The part of this class. Raises KeyError before the start."""
        for part in self._parts:
            if isinstance(part, kind):
                return part
        raise KeyError(kind.__name__)

    # -- start

    async def start(self) -> None:
        """Open the store, restore the tables, listen, start the parts.

        Raises `ConfigError`, `StoreError` or `OSError`, after closing everything again.
        """
        loop = asyncio.get_running_loop()
        self.failed = loop.create_future()
        context = contextvars.copy_context()
        context.run(logs.log_identity.set, self._log_identity)
        # All tasks that the start creates log under this broker's name.
        await loop.create_task(self._start(), context=context)

    async def _start(self) -> None:
        loop = asyncio.get_running_loop()
        config = self._settings.broker
        for line in keys_without_effect(
            controller_mode=config.enable_controller_mode,
            slave_acting_master=config.enable_slave_acting_master,
            set_keys={*changed_keys(config), *changed_keys(self._settings.ha)},
            all_ack=config.all_ack_in_sync_state_set,
            asynchronous=config.broker_role == "ASYNC_MASTER",
        ):
            log.warning("%s", line)
        # Before a store directory is made for a broker that cannot run.
        for port, what in self._ports():
            await check_free(config.bind_address, port, what)
        # A stop does not wait for the recovery of a long log. It is as safe to break off as by a crash.
        store = await in_thread(partial(contextvars.copy_context().run, self._open_store))
        started: list[Part] = []
        try:
            self._build(store)
            await self._listen()
            for part in self._parts:
                started.append(part)
                await part.start()
        except BaseException:
            if hasattr(self, "broker"):
                # Some tables may not be restored yet: do not overwrite their files.
                self.broker.tables.persistence.abandon()
                self.broker.role.stopping = True
                for part in reversed(started):
                    await part.withdraw()
                for part in started:
                    part.role_ending()
                await self._close_ports()
                for part in reversed(started):
                    await part.stop()
            await self._release()
            if self.metrics is not None:
                await self.metrics.stop()
            try:
                await loop.run_in_executor(None, store.close)
            except (OSError, StoreError) as error:  # what prevents the start is more important
                log.error("the store is not closed in order: %s", error)
            raise

    def _ports(self) -> Iterable[tuple[int, str]]:
        """The configured ports, and their names in error messages."""
        listen = self._settings.broker.listen_port
        yield listen, f"port {listen} (listenPort)"
        yield self._ha_port, self._replication_port(self._ha_port)
        if self._vip_port:
            yield self._vip_port, f"port {self._vip_port} ({VIP_PORT_KEY})"

    def _replication_port(self, port: int) -> str:
        """The port and its key, in error messages."""
        key = (
            "haListenPort" if self._settings.ha.ha_listen_port else "haListenPort, by default listenPort + 1"
        )
        return f"replication port {port} ({key})"

    @property
    def _ha_port(self) -> int:
        """The configured replication port; 0: any."""
        listen = self._settings.broker.listen_port
        return self._settings.ha.ha_listen_port or (listen + 1 if listen else 0)

    @property
    def _vip_port(self) -> int:
        """The port for clients with the VIP channel; 0: none."""
        config = self._settings.broker
        distance = VIP_PORT_DISTANCE
        return (
            config.listen_port - distance
            if config.vip_channel_enabled and config.listen_port > distance
            else 0
        )

    def _open_store(self) -> MessageStore:
        config = self._settings.broker
        return MessageStore.open(
            self._settings.store,
            self._clock,
            wait_for_confirm=config.enable_controller_mode,
            policy=StorePolicy({k: v for part in PARTS for k, v in part.unit_codes(config).items()}),
        )

    def _build(self, store: MessageStore) -> None:
        settings, clock = self._settings, self._clock
        config = settings.broker
        light_queues = settings.store.light_queues
        role = RoleState()
        stats = BrokerStats(
            clock.now_ms(),
            merge_light=light_queues and not config.enable_lmq_stats,
            own_topics=(config.broker_cluster_name, config.broker_name),
        )
        replication = self._make_replication(store)
        appender = Appender(store, settings, role, stats, clock, replication)
        tables = Tables(
            topics=TopicTable(config, clock, light_queues=light_queues),
            subscriptions=SubscriptionTable(config, clock, light_queues=light_queues),
            offsets=OffsetTable(clock, config.consumer_offset_update_version_step, light_queues=light_queues),
            mappings=MappingTable(clock),
            filters=FilterTable(clock.now_ms),
            persistence=Persistence(settings.store.root / "config"),
        )
        replication.on_progress = appender.progress
        tables.watch.members = replication.other_members
        broker = self.broker = Broker(
            settings=settings,
            clock=clock,
            rng=self._rng,
            store=store,
            role=role,
            tables=tables,
            appender=appender,
            redirects=Redirects(),
            replication=replication,
            stats=stats,
            client=self._client,
            readers=self._readers,
            fail=self._fail,
            neighbours=self._neighbours,
        )
        for kind in PARTS:
            self._parts.append(kind(broker))
        role.listeners.extend(self._parts)
        appender.listeners.extend(
            part.records_visible for part in self._parts if overrides(part, Part.records_visible)
        )
        for part in self._parts:
            tables.persistence.restore(part.tables())
        sources = {metric: source for part in self._parts for metric, source in part.metrics().items()}
        self.metrics = BrokerMetrics(config, sources)
        self.metrics.watch(self._dispatcher)  # outside of the parts' interceptors: it sees what they refuse
        for part in self._parts:
            part.handlers(self._dispatcher)

    def _make_replication(self, store: MessageStore) -> Replication:
        config, store_config, ha_config = self._settings.broker, self._settings.store, self._settings.ha
        port = self._ha_port
        file_size = store_config.mapped_file_size_commit_log
        sync_flush = store_config.flush_disk_type is FlushDiskType.SYNC_FLUSH
        if not config.enable_controller_mode:
            return ClassicHAService(
                store,
                ha_config,
                self._clock,
                broker_id=config.broker_id,
                port=port,
                host=config.bind_address,
                file_size=file_size,
                sync_flush=sync_flush,
                flush_interval_ms=store_config.flush_interval_commit_log,
                security=self._ha_security,
            )
        return HAService(
            store,
            ha_config,
            self._clock,
            epoch_file=ha_config.store_path_epoch_file or store_config.root / "epochFileCheckpoint",
            port=port,
            host=config.bind_address,
            file_size=file_size,
            sync_flush=sync_flush,
            flush_interval_ms=store_config.flush_interval_commit_log,
            security=self._ha_security,
        )

    async def _listen(self) -> None:
        config, broker = self._settings.broker, self.broker
        tls = server_tls(self._tls)

        async def serve(port: int, key: str) -> RemotingServer:
            server = RemotingServer(
                self._dispatcher, config.bind_address, port, tls=tls, limits=self._limits, key=key
            )
            await server.start()
            self._servers.append(server)
            self._allow_frames()
            return server

        self._settings.listeners.append(lambda before: self._allow_frames())

        first = await serve(config.listen_port, "listenPort")
        broker.address = f"{config.broker_ip1}:{first.port}"
        replication = broker.replication
        if replication is None:
            ha_port = self._settings.ha.ha_listen_port or first.port + 1
        else:
            try:
                await replication.start()
            except OSError as error:
                raise cannot_listen(self._replication_port(replication.port), error) from error
            ha_port = replication.port
        broker.ha_address = f"{config.broker_ip2}:{ha_port}"
        if self._vip_port:
            await serve(self._vip_port, VIP_PORT_KEY)
        assert self.metrics is not None
        await self.metrics.start()

    def _allow_frames(self) -> None:
        """Let clients send messages of `maxMessageSize`."""
        for server in self._servers:
            server.allow_frames(self._settings.store.max_message_size + FRAME_ROOM)

    # -- stop

    async def stop(self) -> None:
        """Leave controllers and name servers, answer requests under way, write everything to disk, close."""
        broker = self.broker
        for part in reversed(self._parts):
            await part.withdraw()
        lost = broker.store.failure is not None
        if not lost:
            await self._drain()
        broker.role.stopping = True
        for part in self._parts:
            part.role_ending()
        await self._close_ports()
        for part in reversed(self._parts):
            await part.stop()
        await self._release()
        if self.metrics is not None:
            await self.metrics.stop()
        close = broker.store.abandon if lost else broker.store.close
        await asyncio.get_running_loop().run_in_executor(None, close)

    async def _release(self) -> None:
        """Close what only this broker uses."""
        if self._own_client:
            await self._client.close()
        if self._own_readers:
            self._readers.shutdown(wait=False)

    def _fail(self, cause: Exception) -> None:
        if not self.failed.done():
            self.failed.set_result(cause)

    async def _drain(self) -> None:
        """Wait for unanswered sends; the broker still serves new ones."""
        deadline = self._clock.monotonic_ms() + DRAIN_MS
        # Polled: an event would slow down every acknowledgement.
        while any(part.unanswered for part in self._parts):
            if self._clock.monotonic_ms() >= deadline:
                break
            await asyncio.sleep(0.01)

    async def _close_ports(self) -> None:
        for server in self._servers:
            await server.stop(drain_ms=0)
        if self.broker.replication is not None:
            await self.broker.replication.stop()

    def _connection_closed(self, connection: Connection) -> None:
        for part in self._parts:
            part.connection_closed(connection)
