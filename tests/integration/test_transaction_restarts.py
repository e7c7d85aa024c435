"""Decisions and checks of transactions survive a restart, also one between commit and op message."""

from __future__ import annotations

import asyncio

import pytest
from tests.integration.broker.rig import v2
from tests.integration.transaction_rig import QUICK, Starter, start, until
from tests.integration.transactions import COMMIT, ROLLBACK

from batonmq.broker.transaction import half as half_module
from batonmq.broker.transaction import recovery
from batonmq.protocol.headers.broker.admin import UpdateBrokerConfig
from batonmq.protocol.names import (
    TRANS_CHECK_MAX_TIME_TOPIC,
    TRANS_HALF_TOPIC,
    TRANS_OP_HALF_TOPIC,
)

__all__ = ["start"]


async def test_decisions_survive_a_restart(start: Starter) -> None:
    rig = await start()
    committed, rolled_back = await rig.prepare("A"), await rig.prepare("B")
    undecided = await rig.prepare("C")
    await rig.end(committed, COMMIT)
    await rig.end(rolled_back, ROLLBACK)
    await rig.client.close()
    await rig.service.stop()
    again = await start(**QUICK)
    await again.connect()
    again.decisions["C"] = COMMIT
    await until(lambda: again.offset(TRANS_HALF_TOPIC) == 3)
    assert [header.msg_id for header, _ in again.checks] == [undecided.key]
    assert await again.bodies() == ["A", "C"]


async def test_checks_before_a_restart_count(start: Starter) -> None:
    rig = await start(**QUICK, transaction_check_max=100)
    await rig.connect()
    await rig.prepare("A")
    await until(lambda: len(rig.checks) >= 3)
    await rig.client.close()
    await rig.service.stop()
    before = rig.part.checks.counts[0]
    assert before in (len(rig.checks), len(rig.checks) - 1)  # a stop may fall into a round
    again = await start(**QUICK, transaction_check_max=before + 2)
    await again.connect()
    await until(lambda: again.stored(TRANS_CHECK_MAX_TIME_TOPIC))
    times = [record.properties["TRANSACTION_CHECK_TIMES"] for _, record in again.checks]
    assert times == [str(before + 1), str(before + 2)]
    await until(lambda: not again.part.checks.counts)


async def test_a_commit_without_its_op_message_is_found_in_the_log(start: Starter) -> None:
    """What a crash leaves in the time in which decisions are collected."""
    rig = await start()
    committed, delayed = await rig.prepare("A"), await rig.prepare("B", DELAY="1")
    rolled_back, undecided = await rig.prepare("C"), await rig.prepare("D")
    await rig.end(committed, COMMIT)
    await rig.end(delayed, COMMIT)
    await rig.end(rolled_back, ROLLBACK)
    rig.term.ops.stop()
    await rig.client.close()
    await rig.service.stop()
    again = await start(**QUICK)
    assert again.stored(TRANS_OP_HALF_TOPIC) == []
    await again.connect()
    again.decisions |= {"C": ROLLBACK, "D": COMMIT}
    await until(lambda: again.offset(TRANS_HALF_TOPIC) == 4)
    # Nothing in the log tells of the rollback: the producer is asked once more.
    assert sorted(header.msg_id or "" for header, _ in again.checks) == [rolled_back.key, undecided.key]
    await asyncio.sleep(1.2)
    assert sorted(await again.bodies()) == ["A", "B", "D"]


async def test_a_commit_behind_a_record_longer_than_a_read_is_found_in_the_log(start: Starter) -> None:
    rig = await start()
    half = await rig.prepare("A")
    await rig.call(UpdateBrokerConfig(), f"maxMessageSize={2 * recovery._CHUNK}".encode())
    await rig.call(v2("Large"), bytes(recovery._CHUNK + 1))
    await rig.end(half, COMMIT)
    rig.term.ops.stop()
    await rig.client.close()
    await rig.service.stop()
    again = await start(**QUICK)
    await again.connect()
    await until(lambda: again.offset(TRANS_HALF_TOPIC) == 1)
    assert again.checks == [] and await again.bodies() == ["A"]


async def test_a_commit_at_the_end_of_a_log_too_long_to_search_is_found(
    start: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An old undecided message must not make the last commits come again."""
    monkeypatch.setattr(recovery, "MOST_BYTES", 1 << 20)
    rig = await start()
    await rig.prepare("old")
    for _ in range(6):
        await rig.call(v2("Large"), bytes(3 << 20))
    half = await rig.prepare("A")
    await rig.end(half, COMMIT)
    rig.term.ops.stop()
    await rig.client.close()
    await rig.service.stop()
    again = await start(**QUICK)
    again.decisions["old"] = ROLLBACK
    await again.connect()
    await until(lambda: again.offset(TRANS_HALF_TOPIC) == 2)
    assert {header.msg_id for header, _ in again.checks} == {"old"}
    assert await again.bodies() == ["A"]


@pytest.mark.parametrize("later", [{"DELAY": "1"}, {"TIMER_DELAY_MS": "3000"}])
async def test_a_repeated_commit_after_a_restart_delivers_a_waiting_message_once(
    start: Starter, later: dict[str, str]
) -> None:
    """The committed message is still in the topic of its delay, not in its own."""
    keys = {**QUICK, "transaction_time_out": 60_000, "message_delay_level": "3s 5s"}
    rig = await start(**keys)
    half = await rig.prepare("A", **later)
    await rig.end(half, COMMIT)
    await until(lambda: rig.offset(TRANS_HALF_TOPIC) == 1)
    await rig.client.close()
    await rig.service.stop()
    again = await start(**keys)
    assert await again.bodies() == []
    await again.end(half, COMMIT)
    await asyncio.sleep(4.5)
    assert await again.bodies() == ["A"]


@pytest.mark.pure
async def test_a_copy_is_decided_by_a_commit_that_only_the_index_tells_of(
    start: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit names the first copy, which the offset has passed, and its op message is lost."""
    monkeypatch.setattr(half_module, "PUT_BACK_AFTER_MS", 300)
    keys = {**QUICK, "transaction_check_max": 10_000}
    rig = await start(**keys)
    half = await rig.prepare("A")
    await until(lambda: rig.offset(TRANS_HALF_TOPIC) >= 1)
    await rig.end(half, COMMIT)
    rig.term.ops.stop()
    copies = len(rig.stored(TRANS_HALF_TOPIC))
    await rig.client.close()
    await rig.service.stop()
    monkeypatch.undo()
    again = await start(**keys)
    again.decisions["A"] = COMMIT
    await again.connect()
    await until(lambda: again.offset(TRANS_HALF_TOPIC) == copies)
    assert await again.bodies() == ["A"]
