"""Registers this broker and its topics with the name servers.

Each name server has a separate task, so a slow one delays no other. The broker registers at the start, every
`registerNameServerPeriod`, when a topic or the role changes, and when the connection to the name server was
lost (RocketMQ's brokers then wait for the next period). It unregisters at the end. All changes of one loop
turn are sent together. Source: REGISTER_BROKER (103), UNREGISTER_BROKER (104), BROKER_HEARTBEAT (904) and
QUERY_DATA_VERSION (322).
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from batonmq.broker.role import RoleKind
from batonmq.common.addresses import split_addresses
from batonmq.common.tasks import lasting
from batonmq.net.errors import NetError
from batonmq.protocol.bodies.common import KVTable
from batonmq.protocol.bodies.topics import (
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigAndMappingSerializeWrapper,
)
from batonmq.protocol.codes import Perm
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.namesrv import (
    BrokerHeartbeat,
    QueryDataVersion,
    RegisterBroker,
    RegisterBrokerResponse,
    UnregisterBroker,
)
from batonmq.protocol.json import decode, encode

if TYPE_CHECKING:
    from batonmq.broker.context import Broker

log = logging.getLogger(__name__)

UNREGISTER_TIMEOUT_MS: Final = 3_000
RETRY_MS: Final = 1_000
"""Pause before the next attempt to reach a name server; never longer than the regular period."""

SEEK_S: Final = (1.0, 5.0)
"""Longest time between registrations of a slave that knows no master, and of one that cannot follow it."""


async def _any(timeout_s: float, *waits: Coroutine[Any, Any, object]) -> None:
    """Wait until one of `waits` is done, at most `timeout_s`."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, timeout=max(0.0, timeout_s), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


def registration_of(broker: Broker) -> tuple[RegisterBroker, bytes]:
    """Header and body that describe the broker's current state."""
    config = broker.settings.broker
    allowed = config.broker_permission
    topics = broker.tables.topics.table
    if allowed != Perm.READ | Perm.WRITE:
        topics = {name: _limited(topic, allowed) for name, topic in topics.items()}
    body = encode(
        RegisterBrokerBody(
            topic_config_serialize_wrapper=TopicConfigAndMappingSerializeWrapper(
                topic_config_table=dict(topics),
                data_version=broker.tables.topics.version,
                topic_queue_mapping_info_map=broker.tables.mappings.infos(),
            )
        )
    )
    acting = config.enable_slave_acting_master
    header = RegisterBroker(
        broker_name=config.broker_name,
        broker_addr=broker.address,
        cluster_name=config.broker_cluster_name,
        ha_server_addr=broker.ha_address,
        broker_id=broker.role.broker_id,
        heartbeat_timeout_millis=config.broker_not_active_timeout_millis if acting else None,
        enable_acting_master=acting,
        compressed=False,
        body_crc32=zlib.crc32(body) & 0x7FFFFFFF,
    )
    return header, body


def _limited(topic: TopicConfig, allowed: int) -> TopicConfig:
    values = {name: getattr(topic, name) for name in topic.__struct_fields__}
    values["perm"] = topic.perm & allowed
    return TopicConfig(**values)


class Registration:
    """Keeps one broker registered with all its name servers."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._addresses = split_addresses(broker.settings.broker.namesrv_addr)
        self._wake: dict[str, asyncio.Event] = {}
        self._keeping: dict[str, asyncio.Task[None]] = {}
        """By name server."""
        self._tasks: list[asyncio.Task[None]] = []
        self._started = False
        self._paused = True

    @property
    def addresses(self) -> list[str]:
        return list(self._addresses)

    def start(self) -> None:
        """Register now and continue; until `pause`, or for good after `stop`."""
        self._paused = False
        if self._started:
            self.now()
            return
        self._started = True
        for address in self._addresses:
            self._keep(address)
        if self._broker.settings.broker.enable_slave_acting_master:
            self._tasks.append(asyncio.create_task(lasting(self._heartbeats, "heartbeats to name servers")))

    def _keep(self, address: str) -> None:
        self._wake[address] = asyncio.Event()
        work = lasting(partial(self._keep_registered, address), f"registration with name server {address}")
        self._keeping[address] = asyncio.create_task(work)

    def set_addresses(self, addresses: Sequence[str]) -> None:
        """The list of name servers has changed: register with new ones, unregister from others."""
        before, self._addresses = self._addresses, list(addresses)
        if not self._started:
            return
        for address in before:
            if address not in self._addresses:
                del self._wake[address]
                leaving = asyncio.create_task(self._leave(address, self._keeping.pop(address)))
                self._tasks.append(leaving)
                leaving.add_done_callback(self._forget)
        for address in self._addresses:
            if address not in self._keeping:
                self._keep(address)

    async def _leave(self, address: str, keeping: asyncio.Task[None]) -> None:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        if not self._paused:
            await self._unregister([address])

    def _forget(self, task: asyncio.Task[None]) -> None:
        if task in self._tasks:
            self._tasks.remove(task)

    def now(self) -> None:
        """Register with all name servers at the end of this loop turn: a topic or the role has changed."""
        for wake in self._wake.values():
            wake.set()

    async def pause(self) -> None:
        """The role is unknown: unregister until `start`."""
        if not self._paused:
            self._paused = True
            await self._unregister(self._addresses)

    async def stop(self) -> None:
        """Unregister and stop."""
        tasks = [*self._tasks, *self._keeping.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._tasks.clear()
        self._keeping.clear()
        self._started = False
        if not self._paused:
            self._paused = True
            await self._unregister(self._addresses)

    async def _keep_registered(self, address: str) -> None:
        loop = asyncio.get_running_loop()
        wake = self._wake[address]
        reachable, listed = True, False
        while True:
            wake.clear()
            if not self._paused:
                ok = await self._register(address, quiet=not reachable)
                if ok and not reachable:
                    log.info("name server %s is reachable again", address)
                if ok and not listed:
                    # This broker may be the one that acts as master now. Name servers notify only the others.
                    self._broker.members.refresh()
                reachable = listed = ok
            else:
                listed = False
            period_s = self._period_s()
            retry_s = min(period_s, RETRY_MS / 1000)
            if not reachable or self._paused:
                await _any(retry_s if not reachable else period_s, wake.wait())
                continue
            registered_at = loop.time()
            await _any(period_s, wake.wait(), self._broker.client.lost(address))
            if not wake.is_set() and self._broker.client.connected(address) is None:
                # A restarted name server does not know this broker; one that only closed the connection has
                # removed it from its routes.
                await _any(registered_at + retry_s - loop.time(), wake.wait())

    def _period_s(self) -> float:
        """A slave with a fixed role learns its master from the answers, so it asks sooner without one."""
        broker = self._broker
        period_s = broker.settings.broker.register_name_server_period / 1000
        if broker.settings.broker.enable_controller_mode or broker.role.kind is not RoleKind.SLAVE:
            return period_s
        if broker.role.master_address is None:
            return min(period_s, SEEK_S[0])
        if broker.replication is not None and not broker.replication.following:
            return min(period_s, SEEK_S[1])
        return period_s

    async def _register(self, address: str, *, quiet: bool) -> bool:
        broker = self._broker
        header, body = registration_of(broker)
        try:
            answer = await broker.client.call(
                address, header, body, timeout_ms=broker.settings.broker.register_broker_timeout_mills
            )
        except (NetError, MQError) as error:
            log.log(logging.DEBUG if quiet else logging.WARNING, "registration failed: %s", error)
            return False
        if (
            isinstance(answer.header, RegisterBrokerResponse)
            and not broker.settings.broker.enable_controller_mode
        ):
            self._learn_master(answer.header)
        if answer.body:
            try:
                broker.tables.topics.set_order(decode(answer.body, KVTable).table)
            except MQError as error:
                log.warning("%s sent an unreadable order configuration: %s", address, error)
        return True

    def _learn_master(self, header: RegisterBrokerResponse) -> None:
        """Outside controller mode the answer names the slave's master."""
        broker = self._broker
        if broker.role.is_master:
            return
        broker.role.learn_master(header.master_addr, header.ha_server_addr)

    async def _unregister(self, addresses: Sequence[str]) -> None:
        broker = self._broker
        header = UnregisterBroker(
            broker_name=broker.settings.broker.broker_name,
            broker_addr=broker.address,
            cluster_name=broker.settings.broker.broker_cluster_name,
            broker_id=broker.role.broker_id,
        )

        async def unregister(address: str) -> None:
            try:
                await broker.client.call(address, header, timeout_ms=UNREGISTER_TIMEOUT_MS)
            except (NetError, MQError) as error:
                log.warning("could not unregister: %s", error)

        await asyncio.gather(*(unregister(address) for address in addresses))

    async def _heartbeats(self) -> None:
        broker = self._broker
        while True:
            await asyncio.sleep(broker.settings.broker.broker_heartbeat_interval / 1000)
            if not self._paused:
                await asyncio.gather(*(self._heartbeat(address) for address in self._addresses))

    async def _heartbeat(self, address: str) -> None:
        broker = self._broker
        config = broker.settings.broker
        try:
            if config.compatible_with_old_name_srv:
                await broker.client.call(
                    address,
                    QueryDataVersion(
                        broker_name=config.broker_name,
                        broker_addr=broker.address,
                        cluster_name=config.broker_cluster_name,
                        broker_id=broker.role.broker_id,
                    ),
                    encode(broker.tables.topics.version),
                    timeout_ms=config.send_heartbeat_timeout_millis,
                )
            else:
                await broker.client.oneway(
                    address,
                    BrokerHeartbeat(
                        cluster_name=config.broker_cluster_name,
                        broker_addr=broker.address,
                        broker_name=config.broker_name,
                    ),
                )
        except (NetError, MQError) as error:
            log.debug("heartbeat failed: %s", error)
