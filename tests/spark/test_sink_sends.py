"""What a task of the sink sends, against a real broker set; without a Spark session."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from batonmq import QueueReader
from batonmq.protocol.message.record import MessageExt, decode_records
from batonmq.spark.sink.encode import RowError
from batonmq.spark.sink.options import parse_sink_options
from batonmq.spark.sink.send import SinkError, Written, write_rows

from .conftest import ClusterOf, Topics, whole_group


def rows(first: int, count: int, keys: int = 0) -> pa.RecordBatch:
    numbers = range(first, first + count)
    columns: dict[str, Any] = {"value": pa.array([b"%d" % i for i in numbers], pa.binary())}
    if keys:
        columns["shardingKey"] = pa.array([f"s{i % keys}" for i in numbers])
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def write(namesrv: str, topic: str, batches: Iterator[pa.RecordBatch], **options: object) -> Written:
    given = {"namesrvAddr": namesrv, "topic": topic, **{k: str(v) for k, v in options.items()}}
    return write_rows(batches, parse_sink_options(given))


def stored(namesrv: str, topic: str) -> dict[int, list[MessageExt]]:
    async def read() -> dict[int, list[MessageExt]]:
        found: dict[int, list[MessageExt]] = {}
        async with QueueReader(namesrv) as reader:
            for queue in await reader.queues(topic):
                at, end = await reader.min_offset(queue), await reader.max_offset(queue)
                messages = found.setdefault(queue.queue_id, [])
                while at < end:
                    pulled = await reader.pull(queue, at)
                    messages += decode_records(pulled.records, check_crc=True)
                    at = pulled.next_offset
        return found

    return asyncio.run(read())


def test_all_rows_arrive_once_and_keys_keep_their_order(topics: Topics) -> None:
    topic = topics.make(queues=3)
    batches = (rows(first, 500, keys=5) for first in range(0, 5_000, 500))
    written = write(topics.namesrv, topic, batches, maxBatchRows=17, maxInFlight=4)
    assert written.rows == 5_000 and written.sends >= 5_000 / 17
    by_key: dict[str, list[int]] = {}
    for messages in stored(topics.namesrv, topic).values():
        for message in messages:
            by_key.setdefault(message.properties["__SHARDINGKEY"], []).append(int(message.body))
    assert by_key == {f"s{k}": list(range(k, 5_000, 5)) for k in range(5)}


def test_rows_without_a_key_go_to_all_queues(topics: Topics) -> None:
    topic = topics.make(queues=4)
    write(topics.namesrv, topic, iter([rows(0, 4_000)]), maxBatchRows=100)
    found = stored(topics.namesrv, topic)
    assert sorted(int(m.body) for messages in found.values() for m in messages) == list(range(4_000))
    assert all(found[q] for q in range(4))


def test_brokers_create_a_topic_for_rows_without_a_key_only(topics: Topics) -> None:
    with pytest.raises(SinkError, match=r"create it with.*for rows without a key and a queue only"):
        write(topics.namesrv, "new-with-keys", iter([rows(0, 5, keys=2)]))
    assert write(topics.namesrv, "new-without-keys", iter([rows(0, 5)])).rows == 5


def test_nothing_to_write_is_nothing_sent(topics: Topics) -> None:
    topic = topics.make()
    assert write(topics.namesrv, topic, iter([rows(0, 0)])) == Written(0, 0, 0)


def test_rows_that_are_no_message_end_the_task_after_what_was_sent(topics: Topics) -> None:
    topic = topics.make()
    bad = pa.RecordBatch.from_arrays([pa.array([None], pa.binary())], names=["value"])
    with pytest.raises(RowError, match="'value' is null"):
        write(topics.namesrv, topic, iter([rows(0, 10), bad]))


def test_a_row_that_is_too_large_says_which_limit(topics: Topics) -> None:
    topic = topics.make()
    noise = bytes(range(256)) * 20_000
    large = pa.RecordBatch.from_arrays([pa.array([noise], pa.binary())], names=["value"])
    with pytest.raises(SinkError, match="over the limit of 4194304"):
        write(topics.namesrv, topic, iter([large]))


def test_without_a_master_the_task_fails_in_time_and_says_so(topics: Topics) -> None:
    with pytest.raises(SinkError, match="no name server answers"):
        write("127.0.0.1:1", "T", iter([rows(0, 1, keys=1)]), sendTimeoutMs=700)
    with pytest.raises(SinkError, match=r"no broker acknowledged within 700 ms: no name server answers"):
        write("127.0.0.1:1", "T", iter([rows(0, 1)]), sendTimeoutMs=700)


def test_all_rows_arrive_in_order_through_the_death_of_the_master(cluster_of: ClusterOf) -> None:
    cluster = cluster_of()
    namesrv = cluster.namesrv_address
    topic = Topics(namesrv).make(queues=4)
    master = asyncio.run(whole_group(cluster)).master_address
    given, killed = 0, threading.Event()

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal given
        while given < 20_000 or not killed.is_set():
            yield rows(given, 200, keys=9)
            given += 200

    outcome: list[Any] = []

    def job() -> None:
        try:
            outcome.append(write(namesrv, topic, batches(), maxBatchRows=20, maxInFlight=3))
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=job)
    thread.start()
    deadline = time.monotonic() + 60
    while given < 2_000:
        assert thread.is_alive() and time.monotonic() < deadline, outcome
        time.sleep(0.005)
    cluster.broker_at(master).kill()
    killed.set()
    thread.join(100)
    assert outcome and isinstance(outcome[0], Written), outcome
    assert outcome[0].rows == given
    seen: dict[str, list[int]] = {}
    ids: set[str] = set()
    for messages in stored(namesrv, topic).values():
        for message in messages:
            if message.properties["UNIQ_KEY"] in ids:
                continue  # a send that was repeated because its answer was lost
            ids.add(message.properties["UNIQ_KEY"])
            seen.setdefault(message.properties["__SHARDINGKEY"], []).append(int(message.body))
    assert len(ids) == given
    assert seen == {f"s{k}": list(range(k, given, 9)) for k in range(9)}
