"""Transactional messages on a real broker: what consumers see, what producers are asked, what survives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tests.integration.transactions import COMMIT, PREPARED, ROLLBACK, UNKNOWN, Half, RawProducer

from batonmq.admin.main import admin
from batonmq.broker.config import BrokerConfig
from batonmq.broker.messages.appender import PutStatus
from batonmq.broker.service import BrokerService
from batonmq.broker.transaction import half as half_module
from batonmq.broker.transaction import recovery
from batonmq.broker.transaction.core import State
from batonmq.broker.transaction.ending import _Commit
from batonmq.broker.transaction.part import TransactionPart
from batonmq.broker.transaction.term import Term
from batonmq.ha.config import HAConfig
from batonmq.net import Dispatcher, RemotingClient
from batonmq.protocol.codes import MessageSysFlag, ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.admin import UpdateBrokerConfig
from batonmq.protocol.headers.broker.send import (
    ResumeCheckHalfMessage,
    SendBatchMessage,
    SendMessageV2,
)
from batonmq.protocol.headers.client import CheckTransactionState
from batonmq.protocol.message.batch import BatchItem, encode_batch
from batonmq.protocol.message.properties import MAX_PROPERTIES_BYTES
from batonmq.protocol.message.record import MessageExt, decode_records
from batonmq.protocol.names import (
    TRANS_CHECK_MAX_TIME_TOPIC,
    TRANS_HALF_TOPIC,
    TRANS_OP_HALF_TOPIC,
    TRANSACTION_GROUP,
)
from batonmq.store.config import StoreConfig

QUICK = {
    "transaction_time_out": 1,
    "transaction_check_interval": 50,
    "transaction_op_batch_interval": 20,
}
"""Checks every 50 ms."""


@dataclass
class Rig(RawProducer):
    """One of our brokers, and a producer."""

    service: BrokerService = field(kw_only=True)

    def stored(self, topic: str) -> list[MessageExt]:
        """All messages of queue 0 of a topic that clients may not read from."""
        result = self.service.broker.store.get(topic, 0, 0, 1_000)
        return [record for view in result.buffers for record in decode_records(view)]

    @property
    def part(self) -> TransactionPart:
        return self.service.part(TransactionPart)

    @property
    def term(self) -> Term:
        assert self.part.term is not None
        return self.part.term

    def offset(self, topic: str) -> int:
        return self.service.broker.tables.offsets.query(TRANSACTION_GROUP, topic, 0)


Starter = Callable[..., Awaitable[Rig]]


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Starter]:
    running: list[Rig] = []

    async def starter(**keys: Any) -> Rig:
        broker = {
            "broker_name": "b",
            "broker_ip1": "127.0.0.1",
            "bind_address": "127.0.0.1",
            "listen_port": 0,
        }
        store = StoreConfig(
            store_path_root_dir=str(tmp_path / "store"),
            mapped_file_size_commit_log=16 << 20,
            max_hash_slot_num=1000,
            max_index_num=5000,
        )
        service = BrokerService(BrokerConfig(**{**broker, **keys}), store, HAConfig())
        await service.start()
        dispatcher = Dispatcher()
        client = RemotingClient(dispatcher=dispatcher)
        rig = Rig(client, f"127.0.0.1:{service.port}", service=service)
        dispatcher.on(CheckTransactionState, rig.on_check)
        running.append(rig)
        return rig

    yield starter
    for rig in running:
        await rig.client.close()
        if not rig.service.broker.role.stopping:
            await rig.service.stop()


def plain(topic: str) -> SendMessageV2:
    """A message without a transaction."""
    return SendMessageV2(
        producer_group="p",
        topic=topic,
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=0,
        sys_flag=0,
        born_timestamp=0,
        flag=0,
        properties="",
    )


async def until(condition: Callable[[], object], timeout_s: float = 5) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.01)


# -- prepare, commit, roll back


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
    for kind in (UNKNOWN, PREPARED, 1, -1):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
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


async def test_a_batch_is_no_transaction(start: Starter) -> None:
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


# -- checks


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


async def given_up(rig: Rig) -> tuple[Half, ResumeCheckHalfMessage]:
    """A half message that was given up, and the request to check it again."""
    await rig.connect()
    half = await rig.prepare("A")
    await until(lambda: rig.offset(TRANS_HALF_TOPIC) == 1)
    (record,) = rig.stored(TRANS_CHECK_MAX_TIME_TOPIC)
    return half, ResumeCheckHalfMessage(topic="T", msg_id=record.offset_message_id)


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
    assert wrong.exit_code != 0 and "no half message" in wrong.output
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


# -- restarts


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
    await rig.call(plain("Large"), bytes(recovery._CHUNK + 1))
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
        await rig.call(plain("Large"), bytes(3 << 20))
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
