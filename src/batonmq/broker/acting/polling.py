"""Asks the name servers for the live members of the broker set and keeps `Broker.members` up to date.

Each name server has a separate task, so one that hangs delays no other. Each is asked every
`syncBrokerMemberGroupPeriod`, and at once after a NOTIFY_MIN_BROKER_ID_CHANGE. Source:
GET_BROKER_MEMBER_GROUP (901); name servers before 5.0 answer with the route of a topic that only the broker
set's members register (`compatibleWithOldNameSrv`).
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from batonmq.broker.acting.core import MemberViews
from batonmq.common.addresses import split_addresses
from batonmq.net.errors import NetError
from batonmq.protocol.bodies.routes import GetBrokerMemberGroupResponseBody, TopicRouteData
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.namesrv import GetBrokerMemberGroup, GetRouteInfo
from batonmq.protocol.json import decode
from batonmq.protocol.names import SYSTEM_TOPIC_PREFIX

if TYPE_CHECKING:
    from collections.abc import Mapping

    from batonmq.broker.context import Broker

log = logging.getLogger(__name__)

TIMEOUT_MS: Final = 1_000
"""How long a name server may take to answer (RocketMQ: 3 s); then its former answer no longer counts."""


class MemberPolling:
    """Keeps `Broker.members` current between `start` and `stop`."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._views = MemberViews()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._wake: dict[str, asyncio.Event] = {}
        self._old: set[str] = set()
        """Name servers that do not know GET_BROKER_MEMBER_GROUP."""
        broker.settings.listeners.append(lambda before: self._configure())
        self._running = False

    def start(self) -> None:
        """Start asking every name server. A second call does nothing."""
        self._running = True
        self._configure()

    async def stop(self) -> None:
        """Stop asking."""
        self._running = False
        tasks = list(self._tasks.values())
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def now(self) -> None:
        """Ask all name servers at once: the members may have changed."""
        for wake in self._wake.values():
            wake.set()

    def _configure(self) -> None:
        if not self._running:
            return
        config = self._broker.settings.broker
        enabled = config.enable_slave_acting_master and not config.enable_controller_mode
        servers = frozenset(split_addresses(config.namesrv_addr)) if enabled else frozenset()
        for server in self._tasks.keys() - servers:
            self._tasks.pop(server).cancel()
            del self._wake[server]
        self._views.keep(servers)
        for server in sorted(servers - self._tasks.keys()):
            self._wake[server] = asyncio.Event()
            task = self._tasks[server] = asyncio.get_running_loop().create_task(self._ask_on(server))
            task.add_done_callback(self._ended)
        if not enabled:
            self._broker.members.update({})

    def _ended(self, task: asyncio.Task[None]) -> None:
        """An exception here is a bug: without members the broker could act beside its master for ever."""
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            log.error("a name server is no longer asked for the members of the broker set", exc_info=error)
            self._broker.fail(error)

    async def _ask_on(self, server: str) -> None:
        wake, broker = self._wake[server], self._broker
        reachable = True
        while True:
            wake.clear()
            try:
                self._views.answered(server, await self.ask(server))
                reachable = True
            except (NetError, MQError) as error:
                log.log(
                    logging.WARNING if reachable else logging.DEBUG,
                    "members of the broker set are unknown: %s",
                    error,
                )
                reachable = False
                self._views.failed(server)
            members = self._views.members()
            if members is not None:
                broker.members.update(members)
            try:
                async with asyncio.timeout(broker.settings.broker.sync_broker_member_group_period / 1000):
                    await wake.wait()
            except TimeoutError:
                continue

    async def ask(self, server: str) -> Mapping[int, str]:
        """The live members as one name server knows them. Raises `NetError`, `MQError`."""
        config = self._broker.settings.broker
        cluster, name = config.broker_cluster_name, config.broker_name
        if server not in self._old:
            header = GetBrokerMemberGroup(cluster_name=cluster, broker_name=name)
            try:
                answer = await self._broker.client.call(server, header, timeout_ms=TIMEOUT_MS)
            except MQError as error:
                old = error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
                if not (old and config.compatible_with_old_name_srv):
                    raise
                self._old.add(server)
            else:
                group = decode(answer.body, GetBrokerMemberGroupResponseBody).broker_member_group
                return group.broker_addrs if group is not None else {}
        topic = f"{SYSTEM_TOPIC_PREFIX}SYNC_BROKER_MEMBER_{name}"
        try:
            answer = await self._broker.client.call(server, GetRouteInfo(topic=topic), timeout_ms=TIMEOUT_MS)
        except MQError as error:
            if error.code != ResponseCode.TOPIC_NOT_EXIST:
                raise
            return {}
        for data in decode(answer.body, TopicRouteData).broker_datas:
            if data.cluster == cluster and data.broker_name == name:
                return data.broker_addrs
        return {}
