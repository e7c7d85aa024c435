"""Requests about physical queues that other broker sets have."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from batonmq.broker.escape.addresses import route_of
from batonmq.net.connection import SUCCESS_ONLY
from batonmq.net.dispatch import Reply
from batonmq.net.errors import ConnectFailed, NetError
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.routing.routes import TopicRoute, parse_route
from batonmq.routing.static_topics import logical_queues

if TYPE_CHECKING:
    from collections.abc import Container

    from batonmq.broker.context import Broker
    from batonmq.net.dispatch import Body
    from batonmq.protocol.registry import Header

KEPT_MS: Final = 5_000
"""Age at which a route is requested again."""
DOUBTED_MS: Final = 500
"""The same for a route with which a request has failed: one of thousands of queues takes 50 ms to read."""


@dataclass(frozen=True, slots=True)
class _Known:
    route: TopicRoute
    leaders: dict[int, str]
    """Logical queue -> broker set."""
    asked_ms: int
    expires_ms: int


class OtherBrokers:
    """Calls the brokers that serve other broker sets."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._known: dict[str, _Known] = {}
        """By topic."""
        self._asking: dict[str, asyncio.Task[_Known]] = {}
        """Requests for routes, by topic; all who need a route wait for the same one."""

    async def leader(self, topic: str, queue_id: int) -> str:
        """Name of the broker set that leads a logical queue, as the name servers know it. Raises `MQError`,
        also if there is none."""
        try:
            name = (await self._route(topic)).leaders.get(queue_id, "")
        except NetError as error:
            raise MQError(ResponseCode.SYSTEM_ERROR, f"no route of {topic}: {error}") from error
        if not name:
            self._doubt(topic)
            raise MQError(ResponseCode.NOT_LEADER_FOR_QUEUE, f"no broker leads {topic}-{queue_id}")
        return name

    async def call(
        self,
        broker_name: str,
        topic: str,
        header: Header,
        body: Body = b"",
        *,
        accept: Container[int] = SUCCESS_ONLY,
        master_only: bool = False,
    ) -> Reply:
        """The answer, which has one of the codes in `accept`. A slave answers if there is no master, unless
        `master_only`. Raises `MQError`."""
        broker = self._broker
        try:
            route = (await self._route(topic)).route
            address = route.master(broker_name) if master_only else route.replica(broker_name)
            if address is None:
                raise ConnectFailed(broker_name, "no name server knows its address")
            timeout_ms = broker.settings.broker.forward_timeout
            answer = await broker.client.call(address, header, body, timeout_ms=timeout_ms, accept=accept)
        except NetError as error:
            self._doubt(topic)
            raise MQError(
                ResponseCode.SYSTEM_ERROR, f"{broker_name} has this part of the queue: {error}"
            ) from error
        except MQError as error:
            if error.code != ResponseCode.QUERY_NOT_FOUND:
                self._doubt(topic)  # perhaps it is no longer master
            raise
        return Reply(answer.header, answer.body, answer.code, answer.remark)

    def _doubt(self, topic: str) -> None:
        known = self._known.get(topic)
        if known is not None:
            self._known[topic] = replace(known, expires_ms=known.asked_ms + DOUBTED_MS)

    async def _route(self, topic: str) -> _Known:
        known = self._known.get(topic)
        if known is not None and known.expires_ms > self._broker.clock.monotonic_ms():
            return known
        asking = self._asking.get(topic)
        if asking is None:
            asking = self._asking[topic] = asyncio.create_task(self._ask(topic))
            asking.add_done_callback(lambda done: self._asked(topic, done))
        return await asyncio.shield(asking)  # one of those who wait may be cancelled

    def _asked(self, topic: str, asking: asyncio.Task[_Known]) -> None:
        del self._asking[topic]
        if not asking.cancelled():
            asking.exception()  # those who wait raise it

    async def _ask(self, topic: str) -> _Known:
        data = await route_of(self._broker, topic)
        led = logical_queues(topic, (data.topic_queue_mapping_by_broker or {}).values())
        now_ms = self._broker.clock.monotonic_ms()
        known = _Known(
            parse_route(topic, data),
            {queue.queue_id: name for queue, name in led.items()},
            now_ms,
            now_ms + KEPT_MS,
        )
        self._known = {each: kept for each, kept in self._known.items() if kept.expires_ms > now_ms}
        self._known[topic] = known
        return known
