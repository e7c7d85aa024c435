"""Transactional messages on a real broker: what consumers see, which requests are refused."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.integration.transaction_rig import QUICK, Starter, start, until
from tests.integration.transactions import COMMIT, PREPARED, ROLLBACK, UNKNOWN

from batonmq.protocol.codes import MessageSysFlag, ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.send import (
    SendBatchMessage,
)
from batonmq.protocol.message.batch import BatchItem, encode_batch
from batonmq.protocol.message.properties import MAX_PROPERTIES_BYTES
from batonmq.protocol.names import (
    TRANS_HALF_TOPIC,
)

__all__ = ["start"]


async def test_a_half_message_is_seen_once_it_is_committed(start: Starter) -> None:
    rig = await start()
    half = await rig.prepare("A", KEYS="k")
    assert (half.answer.queue_id, half.answer.queue_offset, half.answer.transaction_id) == (1, 0, "A")
    assert await rig.bodies() == []
    (stored,) = rig.stored(TRANS_HALF_TOPIC)
    assert stored.sys_flag & MessageSysFlag.TRANSACTION_MASK == 0
    assert stored.properties["REAL_TOPIC"] == "T" and stored.properties["REAL_QID"] == "1"
    assert stored.properties["__transactionId__"] == "A"
    assert rig.part.counts.half == {"T": 1}
    await rig.end(half, COMMIT)
    (message,) = await rig.messages()
    assert (message.body, message.flag, message.keys) == (b"A", 3, ["k"])
    assert message.sys_flag & MessageSysFlag.TRANSACTION_MASK == COMMIT
    assert message.prepared_transaction_offset == half.physical_offset
    assert not {"TRAN_MSG", "REAL_TOPIC", "REAL_QID"} & message.properties.keys()
    assert message.born_timestamp == stored.born_timestamp and message.born_host == stored.born_host
    assert rig.part.counts.half == {"T": 0} and rig.part.counts.committed == {"T": 1}


async def test_a_rolled_back_message_is_never_seen(start: Starter) -> None:
    rig = await start(**{**QUICK, "transaction_time_out": 60_000})
    await rig.connect()
    half = await rig.prepare("A")
    await rig.end(half, ROLLBACK)
    with pytest.raises(MQError, match="was rolled back before"):
        await rig.end(half, COMMIT)
    await rig.end(half, ROLLBACK)
    await until(lambda: rig.offset(TRANS_HALF_TOPIC) == 1)
    await asyncio.sleep(0.1)
    assert await rig.bodies() == [] and rig.checks == []
    assert rig.part.counts.rolled_back == {"T": 1}


async def test_a_commit_that_repeats_delivers_once(start: Starter) -> None:
    rig = await start()
    half = await rig.prepare("A")
    await asyncio.gather(*[rig.end(half, COMMIT) for _ in range(3)])
    await rig.end(half, COMMIT)
    with pytest.raises(MQError, match="was committed before"):
        await rig.end(half, ROLLBACK)
    assert await rig.bodies() == ["A"]


async def test_an_unknown_outcome_is_not_answered(start: Starter) -> None:
    rig = await start()
    half = await rig.prepare("A")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await rig.end(half, UNKNOWN)
    await rig.end(half, COMMIT)
    assert await rig.bodies() == ["A"]


@pytest.mark.parametrize("kind", [PREPARED, 1, -1])
async def test_an_outcome_that_is_none_is_refused_at_once(start: Starter, kind: int) -> None:
    rig = await start()
    half = await rig.prepare("A")
    with pytest.raises(MQError, match=f"commitOrRollback={kind} is neither"):
        await rig.end(half, kind)
    await rig.end(half, COMMIT)
    assert await rig.bodies() == ["A"]


@pytest.mark.parametrize(
    ("fields", "code", "remark"),
    [
        ({"producer_group": "other"}, ResponseCode.SYSTEM_ERROR, "The producer group wrong"),
        (
            {"tran_state_table_offset": 7},
            ResponseCode.SYSTEM_ERROR,
            "The transaction state table offset wrong",
        ),
        ({"commit_log_offset": 1}, ResponseCode.SYSTEM_ERROR, "Find prepared transaction message failed"),
        ({"commit_log_offset": -1}, ResponseCode.SYSTEM_ERROR, "Find prepared transaction message failed"),
        (
            {"commit_log_offset": (1 << 63) - 1},
            ResponseCode.SYSTEM_ERROR,
            "Find prepared transaction message failed",
        ),
        (
            {"transaction_id": "B", "msg_id": "B"},
            ResponseCode.SYSTEM_ERROR,
            "Find prepared transaction message failed",
        ),
    ],
)
async def test_an_end_that_does_not_fit_is_refused(
    start: Starter, fields: dict[str, Any], code: int, remark: str
) -> None:
    rig = await start()
    half = await rig.prepare("A")
    for kind in (COMMIT, ROLLBACK):
        with pytest.raises(MQError) as refused:
            await rig.end(half, kind, **fields)
        assert (refused.value.code, refused.value.remark) == (code, remark)
    await rig.end(half, COMMIT)
    assert await rig.bodies() == ["A"]


async def test_a_plain_message_cannot_be_committed(start: Starter) -> None:
    rig = await start()
    half = await rig.prepare("A")
    await rig.end(half, COMMIT)
    (message,) = await rig.messages()
    with pytest.raises(MQError, match="Find prepared transaction message failed"):
        await rig.end(half, COMMIT, commit_log_offset=message.physical_offset)


async def test_a_message_with_its_own_immunity_time_ends_in_that_time_only(start: Starter) -> None:
    rig = await start(transaction_time_out=1)
    half = await rig.prepare("A", CHECK_IMMUNITY_TIME_IN_SECONDS="0")
    await asyncio.sleep(0.01)
    with pytest.raises(MQError) as refused:
        await rig.end(half, COMMIT)
    assert refused.value.code == ResponseCode.ILLEGAL_OPERATION
    await rig.end(half, COMMIT, from_transaction_check=True)
    assert await rig.bodies() == ["A"]


async def test_transactions_can_be_refused(start: Starter) -> None:
    rig = await start(reject_transaction_message=True)
    with pytest.raises(MQError, match="sending transaction message is forbidden") as refused:
        await rig.prepare("A")
    assert refused.value.code == ResponseCode.NO_PERMISSION


async def test_a_batch_is_not_a_transaction(start: Starter) -> None:
    rig = await start()
    for flag in (PREPARED, COMMIT, ROLLBACK):
        header = SendBatchMessage(
            producer_group="p",
            topic="T",
            default_topic="TBW102",
            default_topic_queue_nums=4,
            queue_id=0,
            sys_flag=flag,
            born_timestamp=1,
            flag=0,
            batch=True,
        )
        with pytest.raises(MQError) as refused:
            await rig.call(header, encode_batch([BatchItem(body=b"x"), BatchItem(body=b"y")]))
        assert refused.value.code == ResponseCode.MESSAGE_ILLEGAL


async def test_a_delayed_transaction_is_delayed_when_it_is_committed(start: Starter) -> None:
    rig = await start(message_delay_level="1s 5s")
    with pytest.raises(MQError, match="DELAY=soon is not a delay level"):
        await rig.prepare("B", DELAY="soon")
    half = await rig.prepare("A", DELAY="1")
    await rig.end(half, COMMIT)
    assert await rig.bodies() == []
    await asyncio.sleep(1.3)
    assert await rig.bodies() == ["A"]


@pytest.mark.parametrize("later", [{"DELAY": "1"}, {"TIMER_DELAY_MS": "1000"}])
async def test_a_delayed_message_with_as_many_properties_as_are_accepted_can_be_committed(
    start: Starter, later: dict[str, str]
) -> None:
    rig = await start(message_delay_level="1s 5s")
    for length in range(MAX_PROPERTIES_BYTES - 200, 0, -1):
        try:
            half = await rig.prepare("A", **later, x="y" * length)
        except MQError as error:
            assert error.code == ResponseCode.MESSAGE_ILLEGAL
        else:
            break
    await rig.end(half, COMMIT)
