"""Reading queues by offset, without a consumer group: for Spark, tools and audits.

A `QueueReader` keeps nothing about how far anybody has read. Each call goes to the queue's master; when that
does not answer, the route is asked for anew, again and again until `retry_timeout_ms`, so a reader goes on
over a master switch at the same offset. Brokers never serve past the confirm offset, nor does this.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Self, TypeVar

from batonmq.net.client import RemotingClient
from batonmq.net.errors import NetError
from batonmq.protocol.bodies import MessageQueue, TopicRouteData, decode
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError, TopicNotExistError
from batonmq.protocol.frame import Buffer
from batonmq.protocol.headers.broker import (
    GetMaxOffset,
    GetMinOffset,
    LitePullMessage,
    PullMessageResponse,
    SearchOffset,
)
from batonmq.protocol.headers.namesrv import GetRouteInfo

T = TypeVar("T")

PERM_READ = 0x1 << 2
MASTER_ID = 0
SUBSCRIPTION_IN_HEADER = 0x1 << 2
"""The pull carries its own subscription, so that no group needs to be registered."""
PULL_ANSWERS = (
    ResponseCode.SUCCESS,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)


@dataclass(frozen=True, slots=True)
class Pulled:
    """Answer to one pull: whole stored records, and where the queue begins and ends just now."""

    records: Buffer
    next_offset: int
    min_offset: int
    max_offset: int


class QueueReader:
    """Reads any queue of any topic; use as an async context manager.

    Args:
        namesrv: name servers, ``host:port`` separated by ``;``.
        group: consumer group named in the pulls; brokers check only that it may read.
        retry_timeout_ms: how long a call keeps trying while the master does not answer.
    """

    def __init__(
        self,
        namesrv: str,
        *,
        group: str = "TOOLS_CONSUMER",
        retry_timeout_ms: int = 60_000,
        call_timeout_ms: int = 3_000,
    ) -> None:
        self._namesrv = [a.strip() for a in namesrv.replace(",", ";").split(";") if a.strip()]
        if not self._namesrv:
            raise ValueError("no name server given")
        self._group = group
        self._retry_timeout_s = retry_timeout_ms / 1000
        self._call_timeout_ms = call_timeout_ms
        self._client = RemotingClient()
        self._routes: dict[str, TopicRouteData] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._client.close()

    async def queues(self, topic: str) -> list[MessageQueue]:
        """All readable queues of a topic. Raises `MQError` TOPIC_NOT_EXIST, or a `NetError`."""
        route = await self._route(topic)
        return sorted(
            MessageQueue(topic, data.broker_name, queue_id)
            for data in route.queue_datas
            if data.perm & PERM_READ
            for queue_id in range(data.read_queue_nums)
        )

    async def min_offset(self, queue: MessageQueue) -> int:
        """Offset of the first message that is still stored."""

        async def ask(address: str) -> int:
            header = GetMinOffset(topic=queue.topic, queue_id=queue.queue_id)
            answer = await self._client.call(address, header, timeout_ms=self._call_timeout_ms)
            return int(answer.header.offset)  # type: ignore[union-attr]

        return await self._at_master(queue, ask)

    async def max_offset(self, queue: MessageQueue) -> int:
        """Offset behind the last message that may be read."""

        async def ask(address: str) -> int:
            header = GetMaxOffset(topic=queue.topic, queue_id=queue.queue_id)
            answer = await self._client.call(address, header, timeout_ms=self._call_timeout_ms)
            return int(answer.header.offset)  # type: ignore[union-attr]

        return await self._at_master(queue, ask)

    async def offset_at(self, queue: MessageQueue, store_time_ms: int) -> int:
        """Offset of the first message stored at or after a time; the queue's end if there is none."""

        async def ask(address: str) -> int:
            header = SearchOffset(topic=queue.topic, queue_id=queue.queue_id, timestamp=store_time_ms)
            answer = await self._client.call(address, header, timeout_ms=self._call_timeout_ms)
            return int(answer.header.offset)  # type: ignore[union-attr]

        return await self._at_master(queue, ask)

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        max_count: int = 32,
        max_bytes: int = 2**31 - 1,
        wait_ms: int = 0,
    ) -> Pulled:
        """Records of `queue` from `offset` on, as the broker holds them; `records` is empty if there are none.

        A broker may send fewer than `max_count`. With `wait_ms` it holds the call until there is a message.
        """

        async def ask(address: str) -> Pulled:
            header = LitePullMessage(
                consumer_group=self._group,
                topic=queue.topic,
                queue_id=queue.queue_id,
                queue_offset=offset,
                max_msg_nums=max_count,
                sys_flag=SUBSCRIPTION_IN_HEADER | (0x2 if wait_ms else 0),
                commit_offset=0,
                suspend_timeout_millis=wait_ms,
                sub_version=0,
                subscription="*",
                expression_type="TAG",
                max_msg_bytes=max_bytes,
            )
            answer = await self._client.call(
                address, header, timeout_ms=self._call_timeout_ms + wait_ms, accept=PULL_ANSWERS
            )
            place = answer.header
            assert isinstance(place, PullMessageResponse)
            found = answer.code == ResponseCode.SUCCESS
            return Pulled(
                answer.body if found else b"",
                place.next_begin_offset if found else offset,
                place.min_offset,
                place.max_offset,
            )

        return await self._at_master(queue, ask)

    # -- routes and retries ---------------------------------------------------------------------------

    async def _at_master(self, queue: MessageQueue, ask: Callable[[str], Awaitable[T]]) -> T:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._retry_timeout_s
        while True:
            try:
                return await ask(await self._master(queue))
            except (NetError, MQError) as error:
                if (isinstance(error, MQError) and not error.retryable) or loop.time() > deadline:
                    raise
                self._routes.pop(queue.topic, None)
                await asyncio.sleep(0.05)

    async def _master(self, queue: MessageQueue) -> str:
        route = self._routes.get(queue.topic) or await self._route(queue.topic)
        for data in route.broker_datas:
            if data.broker_name == queue.broker_name and MASTER_ID in data.broker_addrs:
                return data.broker_addrs[MASTER_ID]
        raise TopicNotExistError(
            ResponseCode.TOPIC_NOT_EXIST, f"no master of {queue} is known to the name servers"
        )

    async def _route(self, topic: str) -> TopicRouteData:
        failure: NetError | None = None
        for address in self._namesrv:
            try:
                answer = await self._client.call(
                    address, GetRouteInfo(topic=topic), timeout_ms=self._call_timeout_ms
                )
            except NetError as error:
                failure = error
                continue
            route = decode(answer.body, TopicRouteData)
            self._routes[topic] = route
            return route
        assert failure is not None
        raise failure
