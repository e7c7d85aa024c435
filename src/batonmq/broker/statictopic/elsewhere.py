"""Requests about physical queues that other broker sets have."""

from __future__ import annotations

from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class _Known:
    route: TopicRoute
    leaders: dict[int, str]
    """Logical queue -> broker set."""
    expires_ms: int


class Elsewhere:
    """Calls the brokers that serve other broker sets."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._known: dict[str, _Known] = {}
        """By topic."""

    async def leader(self, topic: str, queue_id: int) -> str:
        """Name of the broker set that leads a logical queue, as the name servers know it. Raises `MQError`,
        also if there is none."""
        try:
            name = (await self._route(topic)).leaders.get(queue_id, "")
        except NetError as error:
            raise MQError(ResponseCode.SYSTEM_ERROR, f"no route of {topic}: {error}") from error
        if not name:
            self._known.pop(topic, None)
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
    ) -> Reply:
        """The answer, which has one of the codes in `accept`. Raises `MQError`."""
        broker = self._broker
        try:
            address = (await self._route(topic)).route.replica(broker_name)
            if address is None:
                raise ConnectFailed(broker_name, "no name server knows its address")
            timeout_ms = broker.settings.broker.forward_timeout
            answer = await broker.client.call(address, header, body, timeout_ms=timeout_ms, accept=accept)
        except NetError as error:
            self._known.pop(topic, None)
            raise MQError(
                ResponseCode.SYSTEM_ERROR, f"{broker_name} has this part of the queue: {error}"
            ) from error
        except MQError as error:
            if error.code != ResponseCode.QUERY_NOT_FOUND:
                self._known.pop(topic, None)  # perhaps it is no longer master
            raise
        return Reply(answer.header, answer.body, answer.code, answer.remark)

    async def _route(self, topic: str) -> _Known:
        now_ms = self._broker.clock.monotonic_ms()
        known = self._known.get(topic)
        if known is None or known.expires_ms <= now_ms:
            data = await route_of(self._broker, topic)
            led = logical_queues(topic, (data.topic_queue_mapping_by_broker or {}).values())
            known = _Known(
                parse_route(topic, data),
                {queue.queue_id: name for queue, name in led.items()},
                now_ms + KEPT_MS,
            )
            self._known = {each: kept for each, kept in self._known.items() if kept.expires_ms > now_ms}
            self._known[topic] = known
        return known
