"""Spark's offline reader on a store that Java wrote, and its sink against Java's broker. Without Spark."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from batonmq import Message, MessageExt, Producer, QueueReader
from batonmq.protocol.codes import MessageSysFlag, RequestCode
from batonmq.protocol.frame import Command
from batonmq.protocol.headers.broker.send import EndTransaction, SendMessageResponse
from batonmq.protocol.message.ids import decode_message_id
from batonmq.protocol.message.record import decode_records
from batonmq.protocol.names import TRANS_HALF_TOPIC
from batonmq.protocol.send.request import send_ext
from batonmq.routing.session import Session
from batonmq.spark.sink.options import parse_sink_options
from batonmq.spark.sink.send import write_rows
from batonmq.spark.store import queues
from batonmq.spark.store.columns import STORE_COLUMNS, TABLE_COLUMNS
from batonmq.spark.store.options import parse_store_options
from batonmq.spark.store.queues import QUEUE_COLUMNS, units_of_piece
from batonmq.spark.store.source import StoreReader, TableReader
from tests.interop.conftest import Peer

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]
TOPIC = "Offline"
GROUP = "offline-tx"


def rows(reader: Any) -> list[dict[str, Any]]:
    found = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
    return sorted(found, key=lambda row: row["physicalOffset"])


def offline(root: Path, **options: str) -> list[dict[str, Any]]:
    return rows(StoreReader(parse_store_options({"path": str(root), **options}), tuple(STORE_COLUMNS)))


def from_queues(root: Path, **options: str) -> list[dict[str, Any]]:
    """Rows of the columns that consume queues have; each task must find them there."""
    parsed = parse_store_options({"path": str(root), **options})
    reader = StoreReader(parsed, tuple(QUEUE_COLUMNS))
    assert all(units_of_piece(task.work) is not None for task in reader.partitions())
    return rows(reader)


async def online(namesrv: str, topic: str) -> list[MessageExt]:
    found: list[MessageExt] = []
    async with QueueReader(namesrv) as reader:
        for queue in await reader.queues(topic):
            at, end = await reader.min_offset(queue), await reader.max_offset(queue)
            while at < end:
                pulled = await reader.pull(queue, at)
                found += decode_records(pulled.records, check_crc=True)
                at = pulled.next_offset
    return sorted(found, key=lambda m: m.physical_offset)


def narrowed(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: row[name] for name in QUEUE_COLUMNS} for row in found]


def same(got: list[dict[str, Any]], expected: list[MessageExt]) -> None:
    assert [r["physicalOffset"] for r in got] == [m.physical_offset for m in expected]
    for row, message in zip(got, expected, strict=True):
        assert row["value"] == message.body
        assert dict(row["properties"]) == {
            name: value
            for name, value in message.properties.items()
            if name not in ("MIN_OFFSET", "MAX_OFFSET")
        }
        assert (row["topic"], row["queueId"], row["queueOffset"]) == (
            message.topic,
            message.queue_id,
            message.queue_offset,
        )
        assert row["timestamp"].timestamp() * 1000 == message.store_timestamp
        assert row["bornTimestamp"].timestamp() * 1000 == message.born_timestamp
        assert (row["tags"], row["keys"]) == (message.tags, message.properties.get("KEYS"))


async def half(namesrv: str, broker: str, body: bytes, *, commit: bool) -> None:
    """A prepared message, and its end."""
    session = Session(namesrv)
    try:
        address = (await session.refresh(TOPIC)).master(broker)
        assert address is not None
        ext = send_ext(
            GROUP,
            TOPIC,
            broker,
            0,
            sys_flag=MessageSysFlag.TRANSACTION_PREPARED,
            born_timestamp=str(time.time_ns() // 1_000_000),
            flag=0,
            properties=f"TRAN_MSG\x01true\x02PGROUP\x01{GROUP}\x02UNIQ_KEY\x01{body.hex().upper():0>32}\x02",
            batch=False,
        )
        answer = await session.net.invoke(address, Command(int(RequestCode.SEND_MESSAGE_V2), ext), body=body)
        assert answer.code == 0, answer.remark
        stored = SendMessageResponse.from_ext(answer.ext)
        if commit:
            end = EndTransaction(
                producer_group=GROUP,
                tran_state_table_offset=stored.queue_offset,
                commit_log_offset=decode_message_id(stored.msg_id)[2],
                commit_or_rollback=MessageSysFlag.TRANSACTION_COMMIT,
                msg_id=stored.msg_id,
            )
            await session.net.call(address, end)
    finally:
        await session.close()


async def test_a_java_store_reads_as_java_s_broker_does_quick(
    peer: Peer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues, "_PIECE_BYTES_A_QUEUE", 0)
    root = tmp_path / "store"
    namesrv = await peer.start("namesrv")
    broker = await peer.start(
        "broker",
        {
            "namesrvAddr": namesrv.address,
            "brokerName": "java",
            "storePathRootDir": root,
            "storePathCommitLog": root / "commitlog",
            "mappedFileSizeCommitLog": 1 << 20,
            "mapedFileSizeCommitLog": 1 << 20,
            "timerWheelEnable": "true",
        },
    )
    await peer.admin_until(broker.address, "clusterList", "-n", namesrv.address)
    async with Producer("p", namesrv.address, send_timeout_ms=20_000) as producer:
        for n in range(0, 3000, 100):
            await producer.send(
                [
                    Message(TOPIC, b"batch %d " % i + bytes(i % 700), tags=f"t{i % 3}", keys=[f"k{i}"])
                    for i in range(n, n + 100)
                ]
            )
        for n in range(20):
            await producer.send(Message(TOPIC, b"large %d " % n * 2000))
        await producer.send(Message(TOPIC, b"level", delay_level=1))
        await producer.send(Message(TOPIC, b"never", delay_level=18))
        due = time.time_ns() // 1_000_000 + 1500
        await producer.send(Message(TOPIC, b"timer", properties={"TIMER_DELIVER_MS": str(due)}))
        later = time.time_ns() // 1_000_000 + 3_600_000
        await producer.send(Message(TOPIC, b"not yet", properties={"TIMER_DELIVER_MS": str(later)}))
    await half(namesrv.address, "java", b"committed", commit=True)
    await half(namesrv.address, "java", b"pending", commit=False)
    deadline = time.monotonic() + 60
    while len(expected := await online(namesrv.address, TOPIC)) < 3000 + 20 + 3:
        assert time.monotonic() < deadline, len(expected)
        await asyncio.sleep(0.5)
    assert {m.body for m in expected} >= {b"level", b"timer", b"committed"}
    assert any(m.sys_flag & MessageSysFlag.TRANSACTION_MASK for m in expected)

    running = offline(root, subscribe=TOPIC, maxPartitionBytes="100000")
    same(running, expected)
    assert running[0]["broker"] == "store"
    halves = {r["value"] for r in offline(root, subscribe=TRANS_HALF_TOPIC)}
    assert halves == {b"committed", b"pending"}
    everything = {r["value"] for r in offline(root, includeSystemTopics="true")}
    assert {b"never", b"not yet"} <= everything
    assert {r["topic"] for r in offline(root)} == {TOPIC}

    assert broker.terminate() in (0, 143)
    same(offline(root, subscribe=TOPIC, brokerName="java"), expected)
    columns = tuple(TABLE_COLUMNS["consumequeue"])
    units = rows(TableReader(parse_store_options({"path": str(root), "table": "consumequeue"}), columns))
    mine = [
        (u["queueId"], u["queueOffset"], u["physicalOffset"], u["size"]) for u in units if u["topic"] == TOPIC
    ]
    assert mine == [(m.queue_id, m.queue_offset, m.physical_offset, m.store_size) for m in expected]
    index = TableReader(
        parse_store_options({"path": str(root), "table": "index", "maxHashSlotNum": "20000"}),
        tuple(TABLE_COLUMNS["index"]),
    )
    assert from_queues(root, subscribe=TOPIC) == narrowed(offline(root, subscribe=TOPIC))
    everywhere = narrowed(offline(root, includeSystemTopics="true"))
    assert from_queues(root, includeSystemTopics="true") == everywhere
    indexed = {r["physicalOffset"] for r in rows(index)}
    assert {m.physical_offset for m in expected if "KEYS" in m.properties} <= indexed


async def test_the_sink_writes_to_java_s_broker(peer: Peer) -> None:
    namesrv = await peer.start("namesrv")
    broker = await peer.start("broker", {"namesrvAddr": namesrv.address, "brokerName": "java"})
    await peer.admin_until(broker.address, "clusterList", "-n", namesrv.address)
    await peer.admin(
        "updateTopic", "-n", namesrv.address, "-c", "DefaultCluster", "-t", TOPIC, "-r", "4", "-w", "4"
    )
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array([b"%d" % i for i in range(4000)], pa.binary()),
            pa.array([f"k{i}" for i in range(4000)]),
            pa.array([f"s{i % 7}" if i % 2 else None for i in range(4000)]),
            pa.array([1 if i == 0 else None for i in range(4000)], pa.int32()),
            pa.array([[("n", str(i))] for i in range(4000)], pa.map_(pa.string(), pa.string())),
        ],
        names=["value", "keys", "shardingKey", "delayLevel", "properties"],
    )
    options = parse_sink_options({"namesrvAddr": namesrv.address, "topic": TOPIC, "maxBatchRows": "333"})
    written = await asyncio.to_thread(write_rows, iter([batch]), options)
    assert written.rows == 4000
    deadline = time.monotonic() + 60
    while len(found := await online(namesrv.address, TOPIC)) < 4000:
        assert time.monotonic() < deadline, len(found)
        await asyncio.sleep(0.5)
    assert sorted(int(m.body) for m in found) == list(range(4000))
    queues: dict[str, set[int]] = {}
    for message in found:
        n = int(message.body)
        assert message.properties["n"] == str(n) and message.properties["KEYS"] == f"k{n}"
        if n % 2:
            queues.setdefault(message.properties["__SHARDINGKEY"], set()).add(message.queue_id)
    assert all(len(q) == 1 for q in queues.values())
    assert len({m.properties["UNIQ_KEY"] for m in found}) == 4000
    shown = await peer.admin("queryMsgByKey", "-n", namesrv.address, "-t", TOPIC, "-k", "k77")
    assert next(m for m in found if m.body == b"77").properties["UNIQ_KEY"] in shown
