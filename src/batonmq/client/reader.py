"""Reads queues without a consumer group: raw records in bulk, for tools and pipelines.

A reader keeps no position and commits nothing. It follows a queue's master when that changes.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Iterable
from types import TracebackType
from typing import Final, NamedTuple, Self

from batonmq.client.filter import SQL92, Expression, Sql, subscription_data
from batonmq.client.filter_check import check_subscription
from batonmq.client.time_search import EXACT_SINCE, first_at
from batonmq.net.connection import Response
from batonmq.net.errors import ConnectFailed, NetError
from batonmq.protocol.bodies.common import MessageQueue
from batonmq.protocol.codes import ALL_TAGS, ExpressionType, ResponseCode
from batonmq.protocol.compression import CompressionError
from batonmq.protocol.errors import MQError, StaleRouteError, TopicNotExistError, error_for
from batonmq.protocol.frame import Command
from batonmq.protocol.headers.broker.pull import (
    GetMaxOffset,
    GetMaxOffsetResponse,
    GetMinOffset,
    GetMinOffsetResponse,
    PullMessage,
    PullMessageResponse,
    SearchOffset,
    SearchOffsetResponse,
)
from batonmq.protocol.message.light import offset_in
from batonmq.protocol.message.logical import in_logical_queue
from batonmq.protocol.message.record import MessageExt, decode_record, decode_records, inflate
from batonmq.protocol.names import dead_letter_topic
from batonmq.protocol.signing import Credentials
from batonmq.routing.name_servers import NoNameServer
from batonmq.routing.routes import TopicRoute
from batonmq.routing.session import OUTAGE_POLL_S, Session
from batonmq.routing.static_topics import is_mock

log = logging.getLogger(__name__)

READER_GROUP = "batonmq_reader"
"""Consumer group that the broker sees; it is never registered and has no offsets."""

SLAVE_TIMEOUT_MS = 3_000
"""How long a slave may take to answer a pull."""
SLAVE_AVOIDED_S = 10.0
"""How long a slave that did not answer, or refused, is not asked again."""

_EMPTY = frozenset(
    {
        int(ResponseCode.PULL_NOT_FOUND),
        int(ResponseCode.PULL_RETRY_IMMEDIATELY),
        int(ResponseCode.PULL_OFFSET_MOVED),
    }
)


_REMOVED: Final = "MESSAGE_WAS_REMOVING"


def _none_selected(answer: Command) -> bool:
    """Whether an answer without messages leads on because the broker selected none. Brokers also lead readers
    over a hole in a queue, over expired messages, and to where an operator has moved their group."""
    return answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY and answer.remark != _REMOVED


class Pulled(NamedTuple):
    """What one pull brought: whole stored records one after another (see `protocol.message.record`).

    Those of a logical queue have its id and its offsets.
    """

    records: bytes | memoryview
    next_offset: int
    """Queue offset to pull from next; where the broker sent us when the wanted one does not exist."""
    min_offset: int
    """First offset that is still stored, when asked."""
    max_offset: int
    """One past the last offset that may be read, when asked."""


class QueueReader:
    """Reads queues by offset; also light queues (``%LMQ%…``), queue 0 on each broker.

    Args:
        namesrv: ``host:port``, several joined by ``;``.
        retry_timeout_ms: how long a call keeps trying while a queue has no master.
        group: consumer group named in requests.
        slaves: pull from slaves, to spare masters: each queue from one of them. Brokers allow it with
            ``slaveReadEnable=true``. What a slave does not have, or does not answer, its master is asked.

    Every method raises `TopicNotExistError` for an unknown topic, `MQError` for an answer that says no, and
    the last `NetError` when nobody answered in ``retry_timeout_ms``.
    """

    def __init__(
        self,
        namesrv: str | Iterable[str],
        *,
        retry_timeout_ms: int = 10_000,
        group: str = READER_GROUP,
        slaves: bool = False,
        tls: ssl.SSLContext | None = None,
        credentials: Credentials | None = None,
        session: Session | None = None,
    ) -> None:
        self._session = session if session is not None else Session(namesrv, tls=tls, credentials=credentials)
        self._session.light_queues = True
        self._timeout_ms = retry_timeout_ms
        self._group = group
        self._slaves = slaves
        self._avoided: dict[str, float] = {}
        """Address of a slave that did not answer -> when it is asked again (loop time)."""
        self._ends: dict[MessageQueue, int] = {}
        """The last known end of each queue."""

    async def start(self) -> None:
        """See that a name server can be reached; ``async with`` does it.

        Raises `NoNameServer`, after a few seconds; the reader is closed then.
        """
        try:
            await self._session.name_servers.connect()
        except NoNameServer:
            await self.close()
            raise

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()

    async def queues(self, topic: str) -> list[MessageQueue]:
        """The topic's readable queues, by broker name and queue id, as the name server sees them now."""
        route = await self._refreshed_route(topic)
        return list(route.read_queues)

    async def min_offset(self, queue: MessageQueue) -> int:
        """The first offset that is still stored."""
        header = await self._ask(queue, GetMinOffset(queue.topic, queue.queue_id))
        assert isinstance(header, GetMinOffsetResponse)
        return header.offset

    async def max_offset(self, queue: MessageQueue) -> int:
        """One past the last offset that may be read (that is confirmed by the replicas).

        It goes back only for a topic that was created again, or if the master has lost messages."""
        end = await self._max_offset(queue)
        if end < self._ends.get(queue, end):
            # A former master answers as a slave, as RocketMQ's do: ask again, with a new route.
            await self._refreshed_route(queue.topic)
            end = await self._max_offset(queue)
        self._ends[queue] = end
        return end

    async def _max_offset(self, queue: MessageQueue) -> int:
        header = await self._ask(queue, GetMaxOffset(queue.topic, queue.queue_id))
        assert isinstance(header, GetMaxOffsetResponse)
        return header.offset

    async def offset_at(self, queue: MessageQueue, store_time_ms: int) -> int:
        """The first offset stored at or after a time (ms since the epoch); the end when there is none."""
        answer = await self._answer(queue, SearchOffset(queue.topic, queue.queue_id, store_time_ms))
        assert isinstance(answer.header, SearchOffsetResponse)
        if answer.version >= EXACT_SINCE or is_mock(queue.broker_name):
            return answer.header.offset

        async def stored_ms(offset: int) -> int:
            pulled = await self.pull(queue, offset, 1)
            if not pulled.records:
                raise MQError(ResponseCode.SYSTEM_ERROR, f"{queue} has no message at {offset}")
            return decode_record(pulled.records, inflate=False).store_timestamp

        low, high = await self.min_offset(queue), await self.max_offset(queue)
        return await first_at(store_time_ms, answer.header.offset, low, high, stored_ms)

    async def check(self, topic: str, expression: Expression) -> None:
        """Have a broker of the topic check an SQL expression; tags need no check. Raises `MQError` if it does
        not take it."""
        await self._known_route(topic)
        data = subscription_data(topic, expression, 0)
        await check_subscription(self._session, self._group, self._group, data)

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        max_count: int = 1024,
        max_bytes: int = 4 * 1024 * 1024,
        *,
        expression: Expression = ALL_TAGS,
    ) -> Pulled:
        """Records from ``offset`` on, as many as the broker gives at once (its own limits hold too).

        Returns without records when there are none: at the end of the queue, or when ``offset`` is outside
        ``[min_offset, max_offset)``. Does not wait for new messages. `expression`: only messages that the
        broker selects by tags or `sql`. Then there may be none although the next offset is higher. Brokers
        compare hashes of tags, so a message with another tag may be among them.
        """
        header = PullMessage.at_once(
            self._group,
            queue.topic,
            queue.queue_id,
            offset,
            max_count,
            max_bytes,
            subscription=expression.expression if isinstance(expression, Sql) else expression,
            expression_type=SQL92 if isinstance(expression, Sql) else ExpressionType.TAG,
        )
        header.broker_name = queue.broker_name
        ext = header.to_ext()
        answer = await self._at_slave(queue, ext) if self._slaves else None
        if answer is None:
            answer = await self._following(queue, ext)
        found = PullMessageResponse.from_ext(answer.ext)
        records: bytes | memoryview = answer.body if answer.code == ResponseCode.SUCCESS else b""
        selects = expression != ALL_TAGS and not is_mock(queue.broker_name)
        if selects and not records and not _none_selected(answer):
            found.next_begin_offset = offset
        if records and found.offset_delta is not None:
            records = in_logical_queue(records, queue.queue_id, found.offset_delta)
        return Pulled(records, found.next_begin_offset, found.min_offset, found.max_offset)

    async def messages(self, topic: str) -> AsyncIterator[MessageExt]:
        """What a topic holds now, queue by queue, decoded; messages that come later are left out.

        A body that does not inflate is as it was stored, with the bit for compression in `sys_flag`: such
        messages are dead letters. Raises also `MessageFormatError` for a record that cannot be decoded.
        """
        for queue in await self.queues(topic):
            offset, end = await self.min_offset(queue), await self.max_offset(queue)
            while offset < end:
                pulled = await self.pull(queue, offset)
                for message in decode_records(pulled.records, inflate=False):
                    if offset_in(topic, message) < end:
                        try:
                            inflate(message)
                        except CompressionError as error:
                            log.warning("message %s of %s: %s", message.message_id, topic, error)
                        yield message
                if pulled.next_offset <= offset:
                    break  # the queue ends before the offset that was its end: another master
                offset = pulled.next_offset

    async def dead_letters(self, group: str) -> AsyncIterator[MessageExt]:
        """Messages that a group failed to consume too often; none if it never gave one up.

        `Message.from_record` makes a message of one that can be sent again.
        """
        try:
            async for message in self.messages(dead_letter_topic(group)):
                yield message
        except TopicNotExistError:
            return

    async def _at_slave(self, queue: MessageQueue, ext: dict[str, str]) -> Command | None:
        """A pull, on a slave. None if there is none that has these messages: the master has to be asked."""
        now_s = asyncio.get_running_loop().time()
        route = await self._known_route(queue.topic)
        if route.is_static:
            return None  # parts of a logical queue have offsets that only the master gives
        addresses = [a for a in route.slaves(queue.broker_name) if self._avoided.get(a, 0.0) <= now_s]
        if not addresses:
            return None
        address = addresses[queue.queue_id % len(addresses)]
        try:
            answer = await self._session.net.invoke(
                address,
                Command(int(PullMessage.code), dict(ext), binary=True),
                timeout_ms=min(SLAVE_TIMEOUT_MS, self._timeout_ms),
            )
        except NetError as error:
            reason: object = error
        else:
            if answer.code == ResponseCode.SUCCESS:
                return answer
            if answer.code in _EMPTY:
                return None  # it may be behind
            reason = error_for(answer.code, answer.remark, answer.ext)
        log.warning("%s is read from its master: slave %s: %s", queue.broker_name, address, reason)
        self._avoided[address] = now_s + SLAVE_AVOIDED_S
        await self._session.refresh_or_known(queue.topic)
        return None

    async def _following(self, queue: MessageQueue, ext: dict[str, str]) -> Command:
        """A pull, on the master, wherever that goes within the timeout."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout_ms / 1000
        session = self._session
        failure: Exception = ConnectFailed(str(queue), "has no master")
        route = await self._known_route(queue.topic)
        while True:
            if session.closed:
                raise session.closed_error() from failure
            left_ms = (deadline - loop.time()) * 1000
            if left_ms <= 0:
                raise failure
            address = route.master(route.broker_of(queue))
            if address is not None:
                try:
                    answer = await session.net.invoke(
                        address, Command(int(PullMessage.code), dict(ext), binary=True), timeout_ms=left_ms
                    )
                    if answer.code == ResponseCode.SUCCESS or answer.code in _EMPTY:
                        return answer
                    raise error_for(answer.code, answer.remark, answer.ext)
                except NetError as error:
                    failure = error
                except MQError as error:
                    if not error.retryable or isinstance(error, TopicNotExistError):
                        raise
                    failure = error
            await asyncio.sleep(OUTAGE_POLL_S)
            route = await session.refresh_or_known(queue.topic)

    async def _ask(self, queue: MessageQueue, header: GetMinOffset | GetMaxOffset) -> object:
        return (await self._answer(queue, header)).header

    async def _answer(
        self, queue: MessageQueue, header: GetMinOffset | GetMaxOffset | SearchOffset
    ) -> Response:
        await self._known_route(queue.topic)
        return await self._session.call_for(queue, header, timeout_ms=self._timeout_ms, reads=True)

    async def _known_route(self, topic: str) -> TopicRoute:
        return self._session.known_route(topic) or await self._refreshed_route(topic)

    async def _refreshed_route(self, topic: str) -> TopicRoute:
        """The route; name servers that do not answer are asked again until the timeout."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout_ms / 1000
        while True:
            try:
                return await self._session.refresh(topic)
            except (NetError, StaleRouteError) as error:
                gives_up = loop.time() > deadline or self._session.closed
                if gives_up or isinstance(error, TopicNotExistError):
                    raise
            await asyncio.sleep(OUTAGE_POLL_S)
