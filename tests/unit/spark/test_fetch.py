"""Reading a range by pulls, against a queue in memory that gives as little a pull as it likes."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable

from batonmq.client.reader import Pulled
from batonmq.net.errors import ConnectFailed
from batonmq.protocol.bodies.common import MessageQueue
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import TopicNotExistError
from batonmq.protocol.java_hash import java_hash
from batonmq.protocol.message.ids import pack_host
from batonmq.protocol.message.properties import encode_properties
from batonmq.protocol.message.record import StoredMessage, encode_record
from batonmq.spark import fetch
from batonmq.spark.fetch import UnknownTopic, fetcher
from batonmq.spark.options import OptionError, parse_read_options
from batonmq.spark.plan import DataLoss, QueueRange
from batonmq.spark.source import RocketMQBatchReader, RocketMQStreamReader

HOST = pack_host("127.0.0.1", 1)


def record(offset: int, tags: str = "") -> bytes:
    stored = StoredMessage(
        topic="t", queue_id=0, body=b"%d" % offset, flag=0, sys_flag=0, born_timestamp=1,
        properties=encode_properties({"TAGS": tags} if tags else {}),
        born_host=HOST, reconsume_times=0, store_host=HOST,
    )  # fmt: skip
    return bytes(encode_record(stored, queue_offset=offset, physical_offset=offset, store_timestamp=2))


class Queue:
    """A `QueueReader` of one queue that holds ``[begin, end)``; pull number i gives at most ``gives[i]``."""

    def __init__(self, begin: int, end: int, gives: list[int], *, hidden: int = 0) -> None:
        self.begin, self.end, self.gives = begin, end, gives
        self.hidden = hidden
        """So many pulls see a queue that ends at its beginning, as one just after a master switch does."""
        self.pulls = self.under_way = self.most_under_way = 0

    async def pull(self, queue: object, offset: int, max_count: int, *, expression: object = "*") -> Pulled:
        give = min(self.gives[self.pulls % len(self.gives)], max_count)
        self.pulls += 1
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            await asyncio.sleep(0)
        finally:
            self.under_way -= 1
        if self.hidden:
            self.hidden -= 1
            return Pulled(b"", offset, self.begin, self.begin)
        if not self.begin <= offset < self.end:
            return Pulled(b"", offset, self.begin, self.end)
        following = min(offset + give, self.end)
        return Pulled(b"".join(map(record, range(offset, following))), following, self.begin, self.end)

    async def min_offset(self, queue: object) -> int:
        return self.begin

    async def max_offset(self, queue: object) -> int:
        return self.end

    async def close(self) -> None:
        assert self.under_way == 0, "pulls were left under way"


class LogicalQueue(Queue):
    """Parts of a logical queue, as (first offset, end); the last part takes messages."""

    def __init__(self, parts: list[tuple[int, int]], gives: list[int]) -> None:
        super().__init__(parts[0][0], parts[-1][1], gives)
        self.parts = parts

    async def pull(self, queue: object, offset: int, max_count: int, *, expression: object = "*") -> Pulled:
        at = max((n for n, part in enumerate(self.parts) if part[0] <= offset), default=0)
        _, end = self.parts[at]
        if offset >= end and at + 1 < len(self.parts):
            following = self.parts[at + 1][0]
            return Pulled(b"", following, following, self.end)
        return await super().pull(queue, offset, min(max_count, max(1, end - offset)))


class SelectingQueue(Queue):
    """Selects messages by tags as brokers do: it compares hashes, and looks at `looks` messages a pull. "Aa"
    and "BB" have one hash."""

    def __init__(self, begin: int, tags: list[str], gives: list[int], *, looks: int, hidden: int = 0) -> None:
        super().__init__(begin, begin + len(tags), gives, hidden=hidden)
        self.tags, self.looks = tags, looks

    async def pull(self, queue: object, offset: int, max_count: int, *, expression: object = "*") -> Pulled:
        give = min(self.gives[self.pulls % len(self.gives)], max_count)
        nothing = await super().pull(queue, offset, 0)
        if not nothing.min_offset <= offset < nothing.max_offset:
            return nothing
        assert isinstance(expression, str)
        wanted = {java_hash(tag.strip()) for tag in expression.split("||")}
        found = b""
        for at in range(offset, min(offset + self.looks, self.end)):
            if give == 0:
                return Pulled(found, at, self.begin, self.end)
            tag = self.tags[at - self.begin]
            if expression == "*" or java_hash(tag) in wanted:
                found += record(at, tag)
                give -= 1
        return Pulled(found, min(offset + self.looks, self.end), self.begin, self.end)


class GrowingQueue(Queue):
    """Its messages are much larger from `large` on."""

    def __init__(self, end: int, gives: list[int], *, large: int) -> None:
        super().__init__(0, end, gives)
        self.large = large

    async def pull(self, queue: object, offset: int, max_count: int, *, expression: object = "*") -> Pulled:
        if offset < self.large:
            return await super().pull(queue, offset, min(max_count, self.large - offset))
        return await super().pull(queue, offset, 1)


def read(
    monkeypatch, queue: Queue, begin: int, end: int, *, broker: str = "b", **options: object
) -> list[int]:
    monkeypatch.setattr(fetch, "QueueReader", lambda *args, **kwargs: queue)
    raw = {"namesrvAddr": "h:1", "subscribe": "t", "pollTimeoutMs": "50"} | {
        key: str(value) for key, value in options.items()
    }
    found: list[int] = []
    with fetcher(parse_read_options(raw, streaming=False)) as fetch_:
        for batch in fetch_.read(QueueRange("t", broker, 0, begin, end), ("queueOffset",)):
            found += batch.column(0).to_pylist()
    return found


@settings(max_examples=100, deadline=None)
@given(
    st.integers(0, 50),
    st.integers(0, 300),
    st.lists(st.integers(1, 40), min_size=1, max_size=6),
    st.integers(1, 60),
)
def test_each_message_once_however_little_a_pull_gives(begin, count, gives, asked):
    with pytest.MonkeyPatch.context() as patch:
        found = read(patch, Queue(0, 1000, gives), begin, begin + count, pullBatchSize=asked)
    assert found == [*range(begin, begin + count)]


@pytest.mark.parametrize(("gives", "most"), [(1, 16), (32, 16), (1024, 4), (4096, 1), (9999, 1)])
def test_small_pulls_are_under_way_together(monkeypatch, gives, most):
    queue = Queue(0, 20_000, [gives])
    read(monkeypatch, queue, 0, gives * 20 if gives < 1000 else 20_000)
    assert queue.most_under_way == most


def test_batches_hold_many_pulls(monkeypatch):
    queue = Queue(0, 1000, [10])
    monkeypatch.setattr(fetch, "QueueReader", lambda *args, **kwargs: queue)
    options = parse_read_options({"namesrvAddr": "h:1", "subscribe": "t"}, streaming=False)
    with fetcher(options) as fetch_:
        batches = list(fetch_.read(QueueRange("t", "b", 0, 0, 1000), ("value",)))
    assert [batch.num_rows for batch in batches] == [1000]


def test_the_end_hidden_by_a_switch_is_waited_for(monkeypatch):
    assert read(monkeypatch, Queue(0, 30, [7], hidden=2), 0, 30, pollTimeoutMs=5000) == [*range(30)]


@pytest.mark.parametrize(
    ("held", "says", "rest"),
    [
        ((40, 100), "no message at offset 20: messages before 40 have expired", [*range(40, 90)]),
        ((0, 60), "no message at offset 60: the queue ends at 60", [*range(20, 60)]),
        ((95, 100), "messages before 95 have expired", []),
    ],
)
def test_messages_that_are_gone(monkeypatch, held, says, rest):
    with pytest.raises(DataLoss, match=says):
        read(monkeypatch, Queue(*held, [9]), 20, 90)
    assert read(monkeypatch, Queue(*held, [9]), 20, 90, failOnDataLoss="false") == rest


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 30), st.integers(0, 40)), min_size=1, max_size=4),
    st.lists(st.integers(1, 12), min_size=1, max_size=4),
    st.data(),
)
def test_a_logical_queue_is_read_across_the_gaps_between_its_parts(sizes, gives, data):
    parts: list[tuple[int, int]] = []
    at = 0
    for size, gap in sizes:
        parts.append((at, at + size))
        at += size + gap
    end = data.draw(st.integers(0, parts[-1][1]))
    begin = data.draw(st.integers(0, end))
    with pytest.MonkeyPatch.context() as patch:
        found = read(patch, LogicalQueue(parts, gives), begin, end, broker="__syslo__global__")
    assert found == [at for part in parts for at in range(*part) if begin <= at < end]


def test_messages_of_a_logical_queue_can_be_gone(monkeypatch):
    queue = LogicalQueue([(40, 50), (1000, 1010)], [9])
    with pytest.raises(DataLoss, match="messages before 40 have expired"):
        read(monkeypatch, queue, 20, 1005, broker="__syslo__global__")


def test_a_broker_that_withholds_a_message_is_not_asked_for_ever(monkeypatch):
    queue = Queue(0, 100, [9], hidden=10_000)
    with pytest.raises(DataLoss, match="does not give the message at 20"):
        read(monkeypatch, queue, 20, 90)


def test_the_error_of_a_pull_that_was_asked_in_advance_ends_the_read(monkeypatch):
    queue = Queue(0, 1000, [10])
    pull = queue.pull

    async def failing(on: object, offset: int, max_count: int, **asked: object) -> Pulled:
        if offset >= 200:
            raise ConnectFailed("b", "has no master")
        return await pull(on, offset, max_count, **asked)

    monkeypatch.setattr(queue, "pull", failing)
    with pytest.raises(ConnectFailed):
        read(monkeypatch, queue, 0, 900)


class Restarted(Queue):
    """A name server that knows the topic, or its queues, only after so many requests."""

    def __init__(self, requests: int, *, topic: bool) -> None:
        super().__init__(0, 30, [9])
        self.requests, self.topic = requests, topic

    async def queues(self, topic: str) -> list[MessageQueue]:
        if self.requests:
            self.requests -= 1
            if self.topic:
                return []
            raise TopicNotExistError(ResponseCode.TOPIC_NOT_EXIST, "no route")
        return [MessageQueue(topic, "b", 0)]


@pytest.mark.parametrize("streaming", [False, True])
def test_a_topic_that_may_not_be_read_is_not_taken_for_an_empty_one(monkeypatch, streaming):
    raw = {"namesrvAddr": "h:1", "pollTimeoutMs": "50", "subscribe": "t"}
    options = parse_read_options(raw, streaming=streaming)
    monkeypatch.setattr(fetch, "QueueReader", lambda *args, **kwargs: Restarted(10_000, topic=True))
    with pytest.raises(DataLoss, match=r"topic 't' has no queue that can be read; .* permission"):
        if streaming:
            RocketMQStreamReader(options, ("value",)).initialOffset()
        else:
            RocketMQBatchReader(options, ("value",)).partitions()


@pytest.mark.parametrize("named", [{"subscribe": "t"}, {"assign": '{"t": ["b:0"]}'}])
def test_a_stream_waits_while_a_restarted_name_server_does_not_know_its_queues(monkeypatch, named):
    options = parse_read_options({"namesrvAddr": "h:1", "pollTimeoutMs": "5000", **named}, streaming=True)
    stream = RocketMQStreamReader(options, ("value",))
    start, end = {"t": {"b:0": 3}}, {"t": {"b:0": 30}}
    monkeypatch.setattr(fetch, "QueueReader", lambda *args, **kwargs: Restarted(2, topic="assign" in named))
    assert stream.latestOffset(start, ReadAllAvailable()) == end
    assert stream.reportLatestOffset() == end


def test_a_stream_whose_topic_does_not_come_back_fails(monkeypatch):
    options = {"namesrvAddr": "h:1", "pollTimeoutMs": "50", "subscribe": "t"}
    stream = RocketMQStreamReader(parse_read_options(options, streaming=True), ("value",))
    monkeypatch.setattr(fetch, "QueueReader", lambda *args, **kwargs: Restarted(10_000, topic=False))
    with pytest.raises(UnknownTopic):
        stream.latestOffset({"t": {"b:0": 3}}, ReadAllAvailable())


@settings(max_examples=150, deadline=None)
@given(
    st.integers(0, 50),
    st.lists(st.sampled_from(["Aa", "BB", "c", "d"]), max_size=80),
    st.lists(st.integers(1, 10), min_size=1, max_size=4),
    st.integers(1, 30),
    st.integers(0, 3),
    st.data(),
)
def test_messages_that_the_broker_selects(begin, tags, gives, looks, hidden, data):
    end = begin + len(tags)
    first = data.draw(st.integers(begin, end))
    last = data.draw(st.integers(first, end))
    for wanted in ("Aa", "c || d", "x"):
        queue = SelectingQueue(begin, tags, gives, looks=looks, hidden=hidden)
        with pytest.MonkeyPatch.context() as patch:
            found = read(patch, queue, first, last, tags=wanted, pollTimeoutMs=5_000)
        assert found == [n for n in range(first, last) if tags[n - begin] in wanted.split(" || ")]


def test_selected_messages_that_have_expired_are_missed(monkeypatch):
    queue = SelectingQueue(40, ["c"] * 60, [5], looks=7)
    with pytest.raises(DataLoss, match="no message at offset 20: messages before 40 have expired"):
        read(monkeypatch, queue, 20, 100, tags="c")
    assert read(monkeypatch, queue, 20, 100, tags="c", failOnDataLoss="false") == list(range(40, 100))


@pytest.mark.parametrize(
    ("given_options", "problem"),
    [
        ({"tags": "a", "sql": "b > 1"}, "give one of 'tags' and 'sql'"),
        ({"tags": " || "}, "'tags' names no tag"),
        (
            {"tags": "a", "subscribe": "t,SCHEDULE_TOPIC_XXXX"},
            "cannot select messages of SCHEDULE_TOPIC_XXXX",
        ),
        ({"tags": "a" * 70_000}, "'tags' has 70000 characters"),
        ({"sql": " "}, "'sql' is empty"),
    ],
)
def test_filters_that_select_nothing_are_named(given_options, problem):
    with pytest.raises(OptionError, match=problem):
        parse_read_options({"namesrvAddr": "h:1", "subscribe": "t", **given_options}, streaming=True)


def test_pieces_of_large_messages_are_cut(monkeypatch):
    monkeypatch.setattr(fetch, "PIECE_BYTES", 1_000)
    queue = GrowingQueue(400, [100], large=200)
    sizes = []
    piece = fetch.Fetcher._piece

    async def spied(self, *args, **kwargs):
        found = await piece(self, *args, **kwargs)
        sizes.append(sum(map(len, found.records)))
        return found

    monkeypatch.setattr(fetch.Fetcher, "_piece", spied)
    assert read(monkeypatch, queue, 0, 400) == list(range(400))
    one = len(record(399))
    assert max(sizes[3:]) < 1_000 + one


def test_offsets_are_committed_for_all_queues_that_take_them(monkeypatch):
    kept = {}

    class Offsets:
        def __init__(self, *args):
            pass

        async def commit(self, queue, offset):
            if queue.topic == "gone":
                raise TopicNotExistError("gone")
            kept[queue.topic, queue.queue_id] = offset

    monkeypatch.setattr(fetch, "GroupOffsets", Offsets)
    monkeypatch.setattr(fetch, "QueueReader", lambda *args, **kwargs: Queue(0, 1, [1]))
    raw = {"namesrvAddr": "h:1", "subscribe": "t"}
    with fetcher(parse_read_options(raw, streaming=False)) as fetch_, pytest.raises(TopicNotExistError):
        fetch_.commit("g", {"a": {"b:0": 1}, "gone": {"b:0": 2}, "z": {"b:1": 3}})
    assert kept == {("a", 0): 1, ("z", 1): 3}
