"""What a broker asks producers about undecided messages, and what becomes of those it has given up."""

from __future__ import annotations

import asyncio

import pytest
from click.testing import CliRunner, Result
from tests.integration.transaction_rig import QUICK, Starter, given_up, start, until
from tests.integration.transactions import COMMIT, ROLLBACK

from batonmq.admin.main import admin
from batonmq.broker.messages.appender import PutStatus
from batonmq.broker.transaction.core import State
from batonmq.broker.transaction.ending import _Commit
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.send import (
    ResumeCheckHalfMessage,
)
from batonmq.protocol.names import (
    TRANS_CHECK_MAX_TIME_TOPIC,
    TRANS_HALF_TOPIC,
    TRANS_OP_HALF_TOPIC,
)

__all__ = ["start"]


async def test_an_undecided_message_is_asked_for_and_ends_as_the_producer_answers(start: Starter) -> None:
    rig = await start(**QUICK)
    await rig.connect()
    rig.decisions = {"A": COMMIT, "B": ROLLBACK}
    half = await rig.prepare("A", TAGS="t")
    await rig.prepare("B")
    await until(lambda: rig.offset(TRANS_HALF_TOPIC) == 2)
    header, record = rig.checks[0]
    assert (header.tran_state_table_offset, header.commit_log_offset) == (0, half.physical_offset)
    assert (header.topic, header.msg_id, header.transaction_id) == (TRANS_HALF_TOPIC, "A", "A")
    assert (header.broker_name, header.offset_msg_id) == ("b", half.answer.msg_id)
    assert (record.topic, record.queue_id, record.body, record.tags) == ("T", 1, b"A", "t")
    assert record.properties["TRANSACTION_CHECK_TIMES"] == "1"
    assert await rig.bodies() == ["A"]
    assert len(rig.checks) == 2
    await until(lambda: rig.offset(TRANS_OP_HALF_TOPIC) == len(rig.stored(TRANS_OP_HALF_TOPIC)))


async def test_a_message_is_given_up_after_the_last_check_and_can_be_resumed(start: Starter) -> None:
    rig = await start(**QUICK, transaction_check_max=3)
    await rig.connect()
    await rig.prepare("A")
    await until(lambda: rig.stored(TRANS_CHECK_MAX_TIME_TOPIC))
    assert [record.properties["TRANSACTION_CHECK_TIMES"] for _, record in rig.checks] == ["1", "2", "3"]
    assert len(rig.stored(TRANS_HALF_TOPIC)) == 1
    await until(lambda: rig.offset(TRANS_HALF_TOPIC) == 1)
    assert rig.part.counts.half == {"T": 0} or rig.part.counts.half == {}
    rig.decisions["A"] = COMMIT
    (given_up,) = rig.stored(TRANS_CHECK_MAX_TIME_TOPIC)
    await rig.call(ResumeCheckHalfMessage(topic="T", msg_id=given_up.offset_message_id))
    await until(lambda: rig.offset(TRANS_HALF_TOPIC) == 2)
    assert await rig.bodies() == ["A"]


async def test_a_message_that_is_resumed_twice_is_delivered_once(start: Starter) -> None:
    rig = await start(**QUICK, transaction_check_max=10)
    _, resume = await given_up(rig)
    await asyncio.gather(rig.call(resume), rig.call(resume))
    await rig.call(resume)
    rig.decisions["A"] = COMMIT
    await until(lambda: rig.offset(TRANS_HALF_TOPIC) == len(rig.stored(TRANS_HALF_TOPIC)))
    assert len(rig.stored(TRANS_HALF_TOPIC)) == 2 and await rig.bodies() == ["A"]
    with pytest.raises(MQError, match="committed or rolled back"):
        await rig.call(resume)


@pytest.mark.parametrize("restart", [False, True])
async def test_a_message_that_was_committed_late_cannot_be_resumed(start: Starter, restart: bool) -> None:
    rig = await start(**QUICK, transaction_check_max=2)
    half, resume = await given_up(rig)
    await rig.end(half, COMMIT)
    if restart:
        await rig.client.close()
        await rig.service.stop()
        rig = await start(**QUICK)
    with pytest.raises(MQError, match="committed or rolled back"):
        await rig.call(resume)
    assert await rig.bodies() == ["A"]


async def test_a_late_commit_does_not_deliver_again_what_was_resumed(start: Starter) -> None:
    rig = await start(**QUICK, transaction_check_max=2)
    half, resume = await given_up(rig)
    rig.decisions["A"] = COMMIT
    await rig.call(resume)
    await until(lambda: rig.offset(TRANS_HALF_TOPIC) == 2)
    await rig.end(half, COMMIT)
    assert await rig.bodies() == ["A"]


async def test_a_resumed_message_is_not_delivered_again_after_a_late_commit(start: Starter) -> None:
    rig = await start(**QUICK, transaction_check_max=5)
    half, resume = await given_up(rig)
    await rig.call(resume)
    await rig.end(half, COMMIT)
    rig.decisions["A"] = COMMIT
    await until(lambda: rig.offset(TRANS_HALF_TOPIC) == 2)
    assert await rig.bodies() == ["A"]


async def test_only_an_undecided_half_message_can_be_resumed(start: Starter) -> None:
    rig = await start()
    half, open_one = await rig.prepare("A"), await rig.prepare("B")
    await rig.end(half, COMMIT)
    (message,) = await rig.messages()
    bad = ["", "x", "0" * 31, "F" * 32, "7F00000100002A9F7FFFFFFFFFFFFFFF", "00" * 15 + "01"]
    for each in (*bad, message.offset_message_id, half.answer.msg_id):
        with pytest.raises(MQError) as refused:
            await rig.call(ResumeCheckHalfMessage(msg_id=each))
        assert refused.value.code == ResponseCode.SYSTEM_ERROR
    await rig.call(ResumeCheckHalfMessage(msg_id=open_one.answer.msg_id))
    assert len(rig.stored(TRANS_HALF_TOPIC)) == 2


async def test_the_admin_command_resumes_checks(start: Starter) -> None:
    rig = await start(**QUICK, transaction_check_max=1)
    await rig.connect()
    await rig.prepare("A")
    await until(lambda: rig.stored(TRANS_CHECK_MAX_TIME_TOPIC))
    (given_up,) = rig.stored(TRANS_CHECK_MAX_TIME_TOPIC)
    rig.decisions["A"] = COMMIT

    async def run(*words: str) -> Result:
        arguments = ["resumeCheckHalfMessage", "-n", "127.0.0.1:1", *words]
        return await asyncio.to_thread(CliRunner().invoke, admin, arguments)

    bad = await run("-i", "A")
    assert bad.exit_code != 0 and "offsetMsgId" in bad.output
    wrong = await run("-i", given_up.offset_message_id[:-2] + "01", "-b", rig.address)
    assert wrong.exit_code != 0 and "not a half message" in wrong.output
    done = await run("-i", given_up.offset_message_id, "-t", TRANS_CHECK_MAX_TIME_TOPIC)
    assert done.exit_code == 0 and f"broker {rig.address} checks" in done.output
    await until(lambda: rig.offset(TRANS_HALF_TOPIC) == 2)
    assert await rig.bodies() == ["A"]


async def test_a_late_commit_of_a_message_that_was_given_up_delivers_it(start: Starter) -> None:
    rig = await start(**QUICK, transaction_check_max=1)
    half = await rig.prepare("A")
    await until(lambda: rig.stored(TRANS_CHECK_MAX_TIME_TOPIC))
    await rig.end(half, COMMIT)
    assert await rig.bodies() == ["A"]


async def test_a_late_commit_that_is_refused_does_not_hold_the_offset(start: Starter) -> None:
    """The op message that says that the message was given up comes while the commit is under way. It comes
    once, so the message must not count as unsafe again."""
    rig = await start()
    half = await rig.prepare("A")
    term = rig.term
    term.grow()
    term.window.set(0, State.MOVED)
    record = term.half_message(half.physical_offset)
    assert record is not None
    commit = _Commit(rig.part.ends, term, record, 0, "T")
    term.window.set(0, State.COMMITTING)
    term.window.op_read(0, [0], moved=True)
    commit.stored(PutStatus.SERVICE_NOT_AVAILABLE, None)
    term.window.advance()
    assert term.window.offset == 1


async def test_a_message_that_cannot_be_handled_does_not_stop_the_round(start: Starter) -> None:
    rig = await start(**QUICK, transaction_check_max=2)
    await rig.connect()
    rig.decisions["B"] = COMMIT
    await rig.prepare("A", PGROUP="")
    await rig.prepare("B")
    await until(lambda: rig.offset(TRANS_HALF_TOPIC) == 2)
    assert await rig.bodies() == ["B"]
    assert [record.body for record in rig.stored(TRANS_CHECK_MAX_TIME_TOPIC)] == [b"A"]


async def test_a_young_message_is_not_asked_for(start: Starter) -> None:
    rig = await start(**{**QUICK, "transaction_time_out": 60_000})
    await rig.connect()
    await rig.prepare("A")
    await rig.prepare("B", CHECK_IMMUNITY_TIME_IN_SECONDS="0")
    await until(lambda: rig.checks)
    await asyncio.sleep(0.15)
    assert {header.msg_id for header, _ in rig.checks} == {"B"}
