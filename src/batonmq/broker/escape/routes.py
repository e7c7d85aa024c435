"""Topic routes from the name servers, for messages that leave this broker."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from batonmq.broker.escape.core import NOWHERE, usable
from batonmq.common.addresses import split_addresses
from batonmq.protocol.bodies.routes import TopicRouteData
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.namesrv import GetRouteInfo
from batonmq.protocol.json import decode
from batonmq.routing.name_servers import NameServers

if TYPE_CHECKING:
    from batonmq.broker.context import Broker
    from batonmq.routing.routes import TopicRoute

KEPT_MS: Final = 5_000
"""Age at which a route is requested again (RocketMQ: 30 s, `loadBalancePollNameServerInterval`)."""
ABSENT_MS: Final = 500
"""The same for a topic that no other master has."""
MOST: Final = 10_000
"""Routes that are kept; the least recently used one is dropped first."""


class EscapeRoutes:
    """Routes to the other masters of this broker's cluster."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._known: OrderedDict[str, tuple[TopicRoute, int]] = OrderedDict()
        """Topic -> route, and the monotonic time at which it expires."""
        self._asking: dict[str, asyncio.Task[TopicRoute]] = {}
        self._servers: tuple[str, NameServers] | None = None

    async def route(self, topic: str) -> TopicRoute:
        """The masters that take messages of a topic; `NOWHERE` if there are none. Raises `NetError`,
        `MQError`."""
        known = self._known.get(topic)
        if known is not None and known[1] > self._broker.clock.monotonic_ms():
            self._known.move_to_end(topic)
            return known[0]
        task = self._asking.get(topic)
        if task is None:
            task = self._asking[topic] = asyncio.get_running_loop().create_task(self._ask(topic))
            task.add_done_callback(lambda done: self._asked(topic, done))
        return await asyncio.shield(task)

    def forget(self, topic: str) -> None:
        """A send failed: request the route again before the next send."""
        self._known.pop(topic, None)

    def clear(self) -> None:
        """Drop everything: the role ends."""
        self._known.clear()

    def _asked(self, topic: str, task: asyncio.Task[TopicRoute]) -> None:
        del self._asking[topic]
        if not task.cancelled():
            task.exception()  # its waiters raise it

    async def _ask(self, topic: str) -> TopicRoute:
        broker, config = self._broker, self._broker.settings.broker
        if self._servers is None or self._servers[0] != config.namesrv_addr:
            addresses = split_addresses(config.namesrv_addr)
            if not addresses:
                return NOWHERE
            self._servers = config.namesrv_addr, NameServers(addresses, broker.client, broker.rng)
        kept_ms = KEPT_MS
        try:
            answer = await self._servers[1].ask(GetRouteInfo(topic))
        except MQError as error:
            if error.code != ResponseCode.TOPIC_NOT_EXIST:
                raise
            found = NOWHERE
        else:
            data = decode(answer.body, TopicRouteData)
            found = usable(topic, data, config.broker_cluster_name, config.broker_name)
        if not found.write_queues:
            kept_ms = ABSENT_MS
        self._known[topic] = found, broker.clock.monotonic_ms() + kept_ms
        self._known.move_to_end(topic)
        while len(self._known) > MOST:
            self._known.popitem(last=False)
        return found
