"""Batches as half messages, and many half messages ended together: on a real broker, across restarts."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Any

import pytest
from tests.integration.transaction_rig import QUICK, Rig, Starter, start, until
from tests.integration.transactions import COMMIT, PREPARED, ROLLBACK, Half

from batonmq.broker.messages.appender import PutStatus
from batonmq.broker.transaction import ending
from batonmq.common.clock import SystemClock
from batonmq.protocol.bodies.transactions import TransactionEnd, TransactionEnds
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.send import EndTransactions, PrepareBatch
from batonmq.protocol.json import encode
from batonmq.protocol.message.batch import BatchItem, encode_batch
from batonmq.protocol.message.properties import encode_properties
from batonmq.protocol.names import TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC
from batonmq.store.config import StoreConfig
from batonmq.store.store import MessageStore

__all__ = ["start"]


def batch(keys: list[str]) -> bytes:
    return encode_batch(
        BatchItem(body=key.encode(), properties=encode_properties({"UNIQ_KEY": key, "KEYS": key}))
        for key in keys
    )


def keyless(properties: bytes) -> bytes:
    """A batch whose second message has no unique key."""
    return batch(["a"]) + encode_batch([BatchItem(body=b"b", properties=properties)])


async def prepare(
    rig: Rig, keys: list[str], *, queue: int = 1, body: bytes | None = None, **fields: Any
) -> Half:
    properties = {"TRAN_MSG": "true", "PGROUP": "p", "UNIQ_KEY": keys[0], "__TRAN_BATCH": str(len(keys))}
    properties |= fields.pop("properties", {})
    values: dict[str, Any] = {
        "producer_group": "p",
        "topic": "T",
        "default_topic": "TBW102",
        "default_topic_queue_nums": 4,
        "queue_id": queue,
        "sys_flag": PREPARED,
        "born_timestamp": int(time.time() * 1000),
        "flag": 0,
        "properties": encode_properties({k: v for k, v in properties.items() if v}).decode(),
    }
    answer = await rig.call(PrepareBatch(**{**values, **fields}), batch(keys) if body is None else body)
    return Half(keys[0], answer.header)


async def end(rig: Rig, halves: list[Half], kind: int = COMMIT, group: str = "p") -> None:
    body = TransactionEnds(
        [TransactionEnd(half.answer.queue_offset, half.physical_offset, half.key) for half in halves]
    )
    await rig.call(EndTransactions(group, kind), encode(body))


async def test_a_prepared_batch_becomes_its_messages_once_it_is_committed(start: Starter) -> None:
    rig = await start()
    one, two = await prepare(rig, ["a", "b", "c"]), await prepare(rig, ["d", "e"])
    assert await rig.bodies() == []
    await end(rig, [one, two])
    messages = await rig.messages()
    assert [m.body.decode() for m in messages] == ["a", "b", "c", "d", "e"]
    assert [m.queue_offset for m in messages] == list(range(5))
    assert [m.properties["KEYS"] for m in messages] == ["a", "b", "c", "d", "e"]
    assert {m.prepared_transaction_offset for m in messages[:3]} == {one.physical_offset}


async def test_batches_and_single_messages_are_ended_together_and_rolled_back_together(
    start: Starter,
) -> None:
    rig = await start()
    half, rows = await rig.prepare("x"), await prepare(rig, ["a", "b"])
    await end(rig, [half, rows], ROLLBACK)
    await end(rig, [half, rows], ROLLBACK)
    with pytest.raises(MQError, match="was rolled back before"):
        await end(rig, [half, rows])
    more, single = await prepare(rig, ["c", "d"]), await rig.prepare("y")
    await end(rig, [more, single])
    with pytest.raises(MQError, match="was committed before"):
        await end(rig, [more, single], ROLLBACK)
    assert await rig.bodies() == ["c", "d", "y"]


async def test_a_commit_that_repeats_delivers_once_also_after_a_restart(start: Starter) -> None:
    rig = await start(**QUICK)
    halves = [await prepare(rig, ["a", "b"]), await rig.prepare("x")]
    await end(rig, halves)
    await end(rig, halves)
    await until(lambda: rig.offset(TRANS_HALF_TOPIC) == 2)
    await rig.service.stop()
    rig = await start(**QUICK)
    assert rig.term is not None
    await rig.end(halves[1], COMMIT)  # what RocketMQ delivers again
    await end(rig, halves)
    await rig.end(halves[0], COMMIT)
    assert await rig.bodies() == ["a", "b", "x"]


@pytest.mark.pure
async def test_half_messages_of_earlier_masters_are_looked_up_a_few_at_a_time(
    start: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two requests at once, and a request between about one of them: each is delivered once."""
    monkeypatch.setattr(ending, "_LOOKS", 4)
    rig = await start(**QUICK)
    keys = [f"k{number}" for number in range(30)]
    halves = [await rig.prepare(key) for key in keys]
    await end(rig, halves, ROLLBACK)
    await until(lambda: rig.offset(TRANS_HALF_TOPIC) == len(keys))
    await rig.service.stop()
    rig = await start(**QUICK)
    await rig.term.wait_ready()
    store = rig.service.broker.store
    query, turn, looks = store.query_by_key, 0, Counter[int]()

    def counted(*args: Any) -> Any:
        looks[turn] += 1
        return query(*args)

    async def count_turns() -> None:
        nonlocal turn
        while True:
            await asyncio.sleep(0)
            turn += 1

    store.query_by_key = counted  # type: ignore[assignment,method-assign]
    turns = asyncio.ensure_future(count_turns())
    await asyncio.gather(end(rig, halves), rig.end(halves[-1], COMMIT), end(rig, halves))
    turns.cancel()
    assert looks.total() >= len(keys) and max(looks.values()) <= 2 * 4 + 1
    assert sorted(await rig.bodies()) == sorted(keys)


async def test_what_was_never_ended_is_ended_after_a_restart(start: Starter) -> None:
    rig = await start()
    halves = [await prepare(rig, ["a", "b"]), await rig.prepare("x")]
    await rig.service.stop()
    rig = await start()
    await end(rig, halves)
    await end(rig, halves)
    assert await rig.bodies() == ["a", "b", "x"]


@pytest.mark.parametrize("left", [0, 1, 3, 4])
async def test_a_log_that_ends_within_a_batch_is_completed_by_the_next_master(
    start: Starter, left: int
) -> None:
    rig = await start(transaction_op_batch_interval=60_000)
    keys = ["a", "b", "c", "d"]
    half = await prepare(rig, keys)
    await end(rig, [half])
    messages = await rig.messages()
    root = rig.service.broker.store.config.root
    await rig.service.stop()
    cut = (
        messages[left].physical_offset
        if left < len(keys)
        else messages[-1].physical_offset + messages[-1].store_size
    )
    store = MessageStore.open(
        StoreConfig(store_path_root_dir=str(root), mapped_file_size_commit_log=16 << 20),
        SystemClock(),
        wait_for_confirm=False,
    )
    store.truncate(cut)
    store.close()
    rig = await start(transaction_op_batch_interval=60_000)
    if left:
        await rig.term.wait_ready()
        assert await rig.bodies() == keys
    await end(rig, [half])
    assert await rig.bodies() == keys
    assert len(rig.stored(TRANS_OP_HALF_TOPIC)) == 0


@pytest.mark.parametrize(
    "fields",
    [
        {"properties": {"__TRAN_BATCH": "3"}},
        {"properties": {"__TRAN_BATCH": "-1"}},
        {"properties": {"__TRAN_BATCH": ""}},
        {"properties": {"UNIQ_KEY": "other"}},
        {"properties": {"UNIQ_KEY": ""}},
        {"properties": {"TRAN_MSG": "false"}},
        {"properties": {"DELAY": "3"}},
        {"sys_flag": PREPARED | 1},
        {"batch": True},
        {"topic": "%RETRY%g"},
        {"body": b"x" * 30},
        {"body": batch(["a", "b"])[:-1]},
        {"body": b""},
        {"body": keyless(b"")},
        {"body": keyless(b"UNIQ_KEY\x01\xff\x02")},
    ],
    ids=str,
)
async def test_a_batch_that_could_not_be_delivered_is_refused(start: Starter, fields: dict[str, Any]) -> None:
    rig = await start()
    with pytest.raises(MQError) as caught:
        await prepare(rig, ["a", "b"], **fields)
    assert caught.value.code == ResponseCode.MESSAGE_ILLEGAL
    assert rig.stored(TRANS_HALF_TOPIC) == [] and rig.service.broker.store.max_offset == 0


async def test_a_wrong_half_message_among_them_ends_none(start: Starter) -> None:
    rig = await start()
    good = await prepare(rig, ["a", "b"])
    for wrong in (Half("z", good.answer), await rig.prepare("other", PGROUP="q")):
        with pytest.raises(MQError):
            await end(rig, [good, wrong])
    with pytest.raises(MQError, match="The producer group wrong"):
        await end(rig, [good], group="q")
    for ends in ([], [good] * 4_097):
        with pytest.raises(MQError) as caught:
            await end(rig, ends)
        assert caught.value.code == ResponseCode.INVALID_PARAMETER
    for kind in (0, 4, 7):
        with pytest.raises(MQError, match="ends no transaction"):
            await end(rig, [good], kind)
    with pytest.raises(MQError, match="TransactionEnds"):
        await rig.call(EndTransactions("p", COMMIT), b"[]")
    assert await rig.bodies() == []
    await end(rig, [good] * 4_096)
    assert await rig.bodies() == ["a", "b"]


@pytest.mark.pure
async def test_many_small_messages_are_not_ended_in_one_request(
    start: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = await start()
    keys = [f"k{number}" for number in range(10)]
    halves = [await prepare(rig, keys) for _ in range(2)]
    monkeypatch.setattr(ending, "MOST_BYTES", 20 * ending.ROW_BYTES)
    with pytest.raises(MQError, match="half messages of over") as caught:
        await end(rig, halves)
    assert caught.value.code == ResponseCode.INVALID_PARAMETER
    assert await rig.bodies() == []
    for half in halves:
        await end(rig, [half])
    assert await rig.bodies() == keys * 2


class _Late:
    """A waiter whose replicas are late."""

    def __init__(self, waiter: Any) -> None:
        self.wait = waiter.wait
        self._waiter = waiter

    def stored(self, status: PutStatus, result: Any) -> None:
        self._waiter.stored(PutStatus.FLUSH_SLAVE_TIMEOUT, result)


class _LateAppender:
    """An appender whose replicas are late, until they are `safe`."""

    def __init__(self, appender: Any) -> None:
        self._appender = appender
        self.safe = False

    def submit(self, message: Any, waiter: Any) -> None:
        self._appender.submit(message, _Late(waiter))

    def is_acked(self, offset: int) -> bool:
        return self.safe and bool(self._appender.is_acked(offset))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._appender, name)


@pytest.mark.pure
async def test_a_commit_is_not_acknowledged_before_replicas_have_it(
    start: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The producer is not asked again: a master that dies now would take the messages with it."""
    rig = await start()
    half = await prepare(rig, ["a", "b"])
    late = _LateAppender(rig.service.broker.appender)
    monkeypatch.setattr(rig.service.broker, "appender", late)
    for _ in range(2):
        with pytest.raises(MQError, match="not safe yet") as caught:
            await end(rig, [half])
        assert caught.value.code == ResponseCode.FLUSH_SLAVE_TIMEOUT
    await rig.end(half, COMMIT)  # as RocketMQ: a producer that is asked again
    late.safe = True
    await end(rig, [half])
    assert await rig.bodies() == ["a", "b"]
