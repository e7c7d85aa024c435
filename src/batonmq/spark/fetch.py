"""Requests to brokers from Spark's synchronous code: a private event loop, driven call by call."""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import pyarrow as pa
import uvloop

from batonmq.client.filter import Expression, Sql
from batonmq.client.offsets import GroupOffsets
from batonmq.client.reader import READER_GROUP, Pulled, QueueReader
from batonmq.net.errors import NetError
from batonmq.protocol.bodies.common import MessageQueue, TopicList
from batonmq.protocol.codes import ALL_TAGS
from batonmq.protocol.errors import MQError, TopicNotExistError
from batonmq.protocol.headers.namesrv import GetAllTopicList
from batonmq.protocol.json import decode
from batonmq.protocol.message.record import scan_frames
from batonmq.protocol.names import is_dead_letter_topic, is_retry_topic, is_system_topic
from batonmq.routing.session import Session
from batonmq.routing.static_topics import is_mock
from batonmq.spark.options import OptionError, ReadOptions, Times
from batonmq.spark.plan import Bounds, DataLoss, QueueBounds, QueueRange, SeenOffsets, covers
from batonmq.spark.tls import tls_context

if TYPE_CHECKING:
    from batonmq.spark.decode import Decoder

T = TypeVar("T")
Buffer = bytes | memoryview
Decoded = tuple[Iterator[pa.RecordBatch], int]
"""Decoded messages, and the offset of the next ones."""

BATCH_BYTES = 2 * 1024 * 1024
"""Records gathered before they are decoded: batches of a few thousand rows keep the cost per row low."""
ROWS_AHEAD, MOST_PULLS_AHEAD = 4_096, 16
"""What is requested in advance: enough to keep a broker busy that answers 32 messages per pull."""
PIECE_BYTES = 16 * 1024 * 1024
"""A piece ends behind so many bytes: its messages may be larger than those by which pieces were cut."""
SAMPLE_ROWS = 32
"""Messages that are looked at to know how large those of a queue are."""
CATCH_UP_WAIT_S = 0.02
BOUNDS_WAIT_S = 10.0
"""How long offsets that were seen once may be missing before they count as lost. A new master shows what its
SyncStateSet has confirmed, which is everything within milliseconds. A restarted name server knows no topic
until the brokers have registered."""


class Piece(NamedTuple):
    """Consecutive messages of a queue."""

    records: list[Buffer]
    next_offset: int
    whole: bool
    """Whether these are all that were requested."""


class UnknownTopic(LookupError):
    """No broker has registered this topic at the name servers."""

    def __init__(self, topic: str, namesrv: str) -> None:
        super().__init__(f"topic {topic!r} does not exist: name server {namesrv} knows no broker that has it")


class Fetcher:
    """A `QueueReader` for synchronous code, for one task or one driver call; not thread-safe."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._session = Session(
            options.namesrv, tls=tls_context(options.tls), credentials=options.credentials
        )
        self._reader = QueueReader(
            options.namesrv,
            retry_timeout_ms=options.poll_timeout_ms,
            group=options.group or READER_GROUP,
            slaves=options.read_from_slaves,
            session=self._session,
        )
        self._expression: Expression = ALL_TAGS
        if options.sql is not None:
            self._expression = Sql(options.sql)
        elif options.tags is not None:
            self._expression = " || ".join(sorted(options.tags))
        self._loop = uvloop.new_event_loop()  # after what may fail: nothing closes it then

    def run(self, work: Awaitable[T]) -> T:
        return self._loop.run_until_complete(work)

    def close(self) -> None:
        try:
            self.run(self._reader.close())
        finally:
            self._loop.close()

    def connect(self) -> None:
        """Check that a name server answers. Raises `NoNameServer` after a few seconds."""
        self.run(self._reader.start())

    def check_filter(self) -> None:
        """Have a broker check the option ``sql``. Raises `OptionError`."""
        if self._options.sql is None:
            return
        try:
            for topic in self.run(self._topics()):
                self.run(self._reader.check(topic, self._expression))
        except TopicNotExistError:
            return  # what asks for its queues says so
        except MQError as error:
            raise OptionError(f"option 'sql': {error.remark}") from None

    # -- planning -------------------------------------------------------------------------------------

    def bounds(self, reach: SeenOffsets | None = None, *, existed: bool = False) -> Bounds:
        """First and end offset of every queue that the options name.

        `reach`: offsets that existed before. While a queue is missing or ends before its offset, this repeats
        the request for `BOUNDS_WAIT_S` (at most ``pollTimeoutMs``), and then returns what there is.
        `existed`: topics and assigned queues existed before; one that is missing is an error only after that
        time."""
        return self.run(self._bounds_reaching(reach or {}, existed))

    async def _bounds_reaching(self, reach: SeenOffsets, existed: bool) -> Bounds:
        deadline = self._loop.time() + min(BOUNDS_WAIT_S, self._options.poll_timeout_ms / 1000)
        while True:
            last = self._loop.time() >= deadline
            try:
                found = await self._bounds()
            except (UnknownTopic, DataLoss):
                if last or not (reach or existed):
                    raise
            else:
                if last or covers(found, reach):
                    return found
            await asyncio.sleep(CATCH_UP_WAIT_S)

    async def _bounds(self) -> Bounds:
        found: dict[str, dict[str, QueueBounds]] = {}
        for topic in await self._topics():
            queues = await self._queues(topic)
            pairs = await asyncio.gather(*(self._bound(queue) for queue in queues))
            found[topic] = {f"{q.broker_name}:{q.queue_id}": b for q, b in zip(queues, pairs, strict=True)}
        return found

    async def _topics(self) -> Sequence[str]:
        """The topics to read, those of a pattern as the name server knows them now."""
        pattern = self._options.pattern
        if pattern is None:
            return self._options.topics
        answer = await self._session.name_servers.ask(GetAllTopicList())
        return [
            topic
            for topic in sorted(decode(bytes(answer.body), TopicList).topic_list)
            if re.fullmatch(pattern, topic)
            and not is_system_topic(topic)
            and ("%" in pattern or not (is_retry_topic(topic) or is_dead_letter_topic(topic)))
        ]

    async def _queues(self, topic: str) -> list[MessageQueue]:
        try:
            queues = await self._reader.queues(topic)
        except TopicNotExistError:
            raise UnknownTopic(topic, self._options.namesrv) from None
        if self._options.assign is None:
            if not queues and self._options.pattern is None:
                raise DataLoss(
                    f"topic {topic!r} has no queue that can be read; does it have the permission to read "
                    "(perm 6)?"
                )
            return queues
        wanted = self._options.assign[topic]
        by_name = {f"{q.broker_name}:{q.queue_id}": q for q in queues}
        missing = [name for name in wanted if name not in by_name]
        if missing:
            there = ", ".join(sorted(by_name)) or "none"
            raise DataLoss(f"topic {topic!r} has no readable queue {missing[0]!r}; there are: {there}")
        return [by_name[name] for name in wanted]

    async def _bound(self, queue: MessageQueue) -> QueueBounds:
        begin, end = await asyncio.gather(self._reader.min_offset(queue), self._reader.max_offset(queue))
        return QueueBounds(max(0, begin), max(0, begin, end))

    def offsets_at(self, bounds: Bounds, store_time_ms: int | Times) -> dict[str, dict[str, int]]:
        """The first offset of every queue stored at or after a time, one for all or each its own (its end if
        there is none)."""

        async def ask(topic: str, name: str, held: QueueBounds) -> int:
            at = store_time_ms if isinstance(store_time_ms, int) else store_time_ms[topic][name]
            offset = await self._reader.offset_at(_queue(topic, name), at)
            return min(max(offset, held.begin), held.end)

        async def ask_all() -> dict[str, dict[str, int]]:
            return {
                topic: {name: await ask(topic, name, held) for name, held in queues.items()}
                for topic, queues in bounds.items()
            }

        return self.run(ask_all())

    def mean_sizes(self, start: SeenOffsets, available: SeenOffsets) -> list[tuple[int, int]]:
        """Backlog of each queue that has one, and the mean size of its next records in bytes."""

        async def ask(topic: str, name: str, begin: int, end: int) -> tuple[int, int]:
            pulled = await self._reader.pull(_queue(topic, name), begin, min(end - begin, SAMPLE_ROWS))
            bounds = scan_frames(pulled.records)
            return end - begin, bounds[-1] // max(1, len(bounds) - 1)

        async def ask_all() -> list[tuple[int, int]]:
            return [
                await ask(topic, name, start.get(topic, {}).get(name, 0), end)
                for topic, queues in available.items()
                for name, end in queues.items()
                if end > start.get(topic, {}).get(name, 0)
            ]

        return self.run(ask_all())

    def commit(self, group: str, offsets: SeenOffsets) -> None:
        """Keep a group's offsets at the brokers, as far as there are any for the queues. Raises the first
        `MQError` or `NetError` at the end."""

        async def commit_all() -> list[MQError | NetError]:
            committed = GroupOffsets(self._session, group)
            errors: list[MQError | NetError] = []
            for topic, queues in offsets.items():
                for name, offset in queues.items():
                    try:
                        await committed.commit(_queue(topic, name), offset)
                    except (MQError, NetError) as error:
                        errors.append(error)
            return errors

        errors = self.run(commit_all())
        if errors:
            raise errors[0]

    # -- reading --------------------------------------------------------------------------------------

    def read(self, wanted: QueueRange, columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
        """Exactly the messages ``[begin, end)`` of one queue, or an exception: `DataLoss` when some are gone,
        a `NetError` when no master answered for `pollTimeoutMs`."""
        queue = MessageQueue(wanted.topic, wanted.broker, wanted.queue_id)
        from batonmq.spark.decode import Decoder, OffsetGap  # not needed to plan a query

        decoder = Decoder(columns, topic=wanted.topic, broker=wanted.broker)
        decoded = self._all if self._expression == ALL_TAGS else self._selected
        position = wanted.begin
        while position < wanted.end:
            began = position
            try:
                for batches, following in decoded(decoder, queue, began, wanted.end):
                    yield from batches
                    position = following
            except OffsetGap as gap:
                raise DataLoss(f"{wanted.topic} {wanted.queue}: {gap}") from gap
            if position == began:
                held = self.run(self._bound(queue))
                position = self.run(self._next_part(queue, position, wanted.end, held))
            if position == began:
                position = self._behind_the_hole(wanted, position, held)

    def _all(self, decoder: Decoder, queue: MessageQueue, begin: int, end: int) -> Iterator[Decoded]:
        """All messages of ``[begin, end)``, as far as there are any, and where the next ones begin. Raises
        `OffsetGap`."""
        ahead = _gathered(self._pieces(queue, begin, end))
        try:
            while records := self.run(anext(ahead, [])):
                batches, begin = decoder.decode(b"".join(records), begin, end)
                yield batches, begin
        finally:
            self.run(ahead.aclose())

    def _selected(self, decoder: Decoder, queue: MessageQueue, begin: int, end: int) -> Iterator[Decoded]:
        """As `_all`, for the messages that the broker selects."""
        ahead = self._selected_records(queue, begin, end)
        try:
            while found := self.run(anext(ahead, None)):
                records, following = found
                yield decoder.decode_selected(bytes(records), begin, end, self._options.tags), following
                begin = following
        finally:
            self.run(ahead.aclose())

    async def _selected_records(
        self, queue: MessageQueue, begin: int, end: int
    ) -> AsyncGenerator[tuple[Buffer, int], None]:
        """What each pull brings, and where the next one begins; the next one is requested before. Ends at
        `end`, or where the queue has no message to look at."""
        asked = self._loop.create_task(self._pull(queue, begin, end))
        try:
            while True:
                pulled = await asked
                if pulled.next_offset <= begin or begin < pulled.min_offset:
                    return
                begin = min(pulled.next_offset, end)
                if begin < end:
                    asked = self._loop.create_task(self._pull(queue, begin, end))
                    await asyncio.sleep(0)  # so that it is sent before this side continues
                yield pulled.records, begin
                if begin == end:
                    return
        finally:
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)

    async def _pieces(self, queue: MessageQueue, begin: int, end: int) -> AsyncGenerator[Piece, None]:
        """The messages of ``[begin, end)`` in order, up to the end, the first offset without a message, or
        the first piece that is cut short.

        This requests the next pieces in advance, so that the broker works while this side decodes. The first
        pull shows how many messages the broker returns per pull (RocketMQ's default is 32); then enough pulls
        are in flight for `ROWS_AHEAD`."""
        first = await self._piece(queue, begin, end, pulls=1)
        yield first
        size = first.next_offset - begin
        if size <= 0:
            return
        starts = iter(range(first.next_offset, end, size))

        async def ask(count: int) -> None:
            for start in islice(starts, count):
                piece = self._piece(queue, start, min(start + size, end))
                under_way.append(self._loop.create_task(piece))
            await asyncio.sleep(0)  # so that they are sent before this side continues

        under_way: deque[asyncio.Task[Piece]] = deque()
        try:
            await ask(min(MOST_PULLS_AHEAD, max(1, ROWS_AHEAD // size)))
            while under_way:
                piece = await under_way.popleft()
                await ask(1)
                yield piece
                if not piece.whole:
                    return
        finally:
            for task in under_way:
                task.cancel()
            await asyncio.gather(*under_way, return_exceptions=True)

    async def _piece(self, queue: MessageQueue, begin: int, end: int, pulls: int | None = None) -> Piece:
        """The messages ``[begin, end)`` with as many pulls as needed, or at most `pulls`. Ends sooner behind
        `PIECE_BYTES`."""
        records: list[Buffer] = []
        at, size = begin, 0
        while at < end and size < PIECE_BYTES and (pulls is None or len(records) < pulls):
            pulled = await self._pull(queue, at, end)
            if not pulled.records:
                break
            records.append(pulled.records)
            at, size = pulled.next_offset, size + len(pulled.records)
        return Piece(records, at, at >= end)

    async def _pull(self, queue: MessageQueue, offset: int, end: int) -> Pulled:
        count = min(self._options.pull_batch_size, end - offset)
        deadline = self._loop.time() + self._options.poll_timeout_ms / 1000
        while True:
            pulled = await self._reader.pull(queue, offset, count, expression=self._expression)
            # Without messages it continues behind those not selected, or behind a part of a logical queue.
            leaps = self._expression != ALL_TAGS or is_mock(queue.broker_name)
            found = bool(pulled.records) or (leaps and pulled.next_offset > offset)
            # A new master shows the end of the queue only after its SyncStateSet has confirmed it.
            if found or offset < pulled.min_offset or self._loop.time() > deadline:
                return pulled
            await asyncio.sleep(CATCH_UP_WAIT_S)

    async def _next_part(self, queue: MessageQueue, offset: int, end: int, held: QueueBounds) -> int:
        """Where the next part of a logical queue begins, at most `end`; `offset` if its part continues.

        Between two parts are offsets that no message ever had.
        """
        if not is_mock(queue.broker_name) or not held.begin <= offset < held.end:
            return offset
        pulled = await self._reader.pull(queue, offset, 1)
        return offset if pulled.records else min(max(offset, pulled.next_offset), end)

    def _behind_the_hole(self, wanted: QueueRange, offset: int, held: QueueBounds) -> int:
        """The next offset to read: `offset` has no message, although it had one at planning time."""
        if offset < held.begin:
            problem, following = f"messages before {held.begin} have expired", min(held.begin, wanted.end)
        elif offset >= held.end:
            problem, following = f"the queue ends at {held.end}", wanted.end
        else:
            raise DataLoss(f"{wanted.topic} {wanted.queue}: the broker does not give the message at {offset}")
        if self._options.fail_on_data_loss:
            raise DataLoss(
                f"{wanted.topic} {wanted.queue}: no message at offset {offset}: {problem}; "
                "set failOnDataLoss=false to read what is there"
            )
        return following


async def _gathered(pieces: AsyncGenerator[Piece, None]) -> AsyncGenerator[list[Buffer], None]:
    """Records of consecutive pieces, `BATCH_BYTES` at a time. Closes `pieces`."""
    records: list[Buffer] = []
    size = 0
    async with aclosing(pieces):
        async for piece in pieces:
            records += piece.records
            size += sum(map(len, piece.records))
            if size >= BATCH_BYTES:
                yield records
                records, size = [], 0
    if records:
        yield records


def _queue(topic: str, name: str) -> MessageQueue:
    """The queue named ``broker:id``."""
    broker, _, queue_id = name.rpartition(":")
    return MessageQueue(topic, broker, int(queue_id))


@contextmanager
def fetcher(options: ReadOptions) -> Iterator[Fetcher]:
    """A `Fetcher` that is closed at the end."""
    made = Fetcher(options)
    try:
        yield made
    finally:
        made.close()
