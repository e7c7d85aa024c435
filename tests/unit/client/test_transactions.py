"""Transactional messages against brokers in memory."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from batonmq.client import transactions
from batonmq.client.errors import NotSafelyStored, TransactionUnconfirmed
from batonmq.client.hooks import Hook, TransactionEnd, TransactionState
from batonmq.client.message import Message
from batonmq.client.transactions import TransactionProducer
from batonmq.net import RemotingClient
from batonmq.net.connection import Connection
from batonmq.net.dispatch import Reply, Request
from batonmq.protocol.codes import MessageSysFlag, RequestCode, ResponseCode
from batonmq.protocol.errors import MQError, error_for
from batonmq.protocol.headers.broker.send import EndTransaction
from batonmq.protocol.headers.client import CheckTransactionState
from batonmq.protocol.message.properties import encode_properties
from batonmq.protocol.message.record import StoredMessage, encode_record

from .fakes import FakeBroker, FakeCluster, properties_of
from .helpers import until

COMMIT, ROLLBACK, UNKNOWN = TransactionState.COMMIT, TransactionState.ROLLBACK, TransactionState.UNKNOWN


class TransactionBroker(FakeBroker):
    """Keeps what producers say about transactions."""

    def more(self) -> dict[int, Callable[[Request], object]]:
        self.ends: list[tuple[EndTransaction, bool]] = []
        """(header, whether it was sent oneway)"""
        return {RequestCode.END_TRANSACTION: self._end}

    def _end(self, request: Request) -> Reply:
        self.ends.append((EndTransaction.from_ext(request.command.ext), request.oneway))
        return Reply()

    def ask(self, body: bytes, *, group: str = "g", key: str | None = "K1", **header: Any) -> None:
        """Ask all clients about a transaction."""
        properties = {"PGROUP": group, **({"UNIQ_KEY": key} if key else {})}
        record = encode_record(
            StoredMessage(topic="t", queue_id=0, body=body, properties=encode_properties(properties)),
            queue_offset=7,
            physical_offset=700,
            store_timestamp=1,
        )
        self.ask_raw(record, transaction_id=key, **header)

    def ask_raw(self, record: bytes, **header: Any) -> None:
        for connection in list(self.server.connections):
            assert isinstance(connection, Connection)
            connection.oneway(CheckTransactionState(7, 700, topic="t", **header), record)


def producer_of(cluster: FakeCluster, check: Any = lambda message: UNKNOWN, **options: Any) -> Any:
    return TransactionProducer("g", cluster.namesrv, check=check, **options)


async def test_leaving_the_context_commits_the_half_message() -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker_of(TransactionBroker, "a")
        cluster.topic("t", a=2)
        async with producer_of(cluster) as producer:
            message = Message("t", b"x", keys="17")
            async with producer.transaction(message) as transaction:
                (half,) = broker.sends
                assert half.sys_flag == MessageSysFlag.TRANSACTION_PREPARED
                properties = properties_of(half)
                assert (properties["TRAN_MSG"], properties["PGROUP"]) == ("true", "g")
                assert transaction.transaction_id == message.unique_id == properties["UNIQ_KEY"]
                assert broker.ends == [], "nothing is decided inside"
            assert transaction.state is COMMIT
        ((end, oneway),) = broker.ends
        assert not oneway, "the producer waits for the confirmation"
        assert end.commit_or_rollback == MessageSysFlag.TRANSACTION_COMMIT
        assert (end.producer_group, end.topic, end.msg_id) == ("g", "t", message.unique_id)
        assert (end.tran_state_table_offset, end.commit_log_offset) == (0, 0)
        assert end.from_transaction_check is False


async def test_rollback_is_said_inside_and_only_once() -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker_of(TransactionBroker, "a")
        cluster.topic("t", a=1)
        async with producer_of(cluster) as producer:
            with pytest.raises(KeyError):
                async with producer.transaction(Message("t", b"x")) as transaction:
                    await transaction.rollback()
                    with pytest.raises(RuntimeError, match="decided already: ROLLBACK"):
                        await transaction.commit()
                    raise KeyError
            with pytest.raises(RuntimeError, match="async with"):
                _ = producer.transaction(Message("t", b"x")).half
            with pytest.raises(RuntimeError, match="entered once"):
                await transaction.__aenter__()
        assert [end.commit_or_rollback for end, _ in broker.ends] == [MessageSysFlag.TRANSACTION_ROLLBACK]


@pytest.mark.parametrize("error", [OSError("the database is gone"), asyncio.CancelledError()])
async def test_an_exception_leaves_the_state_to_the_check(error: BaseException) -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker_of(TransactionBroker, "a")
        cluster.topic("t", a=1)
        asked: list[str] = []

        async def check(message: Any) -> TransactionState:
            asked.append(message.message_id)
            return COMMIT

        async with producer_of(cluster, check) as producer:
            message = Message("t", b"x")
            with pytest.raises(type(error)):
                async with producer.transaction(message):
                    raise error
            assert broker.ends == []
            broker.ask(b"x", key=message.unique_id)
            await until(lambda: len(broker.ends) == 1)
        ((end, oneway),) = broker.ends
        assert oneway and end.from_transaction_check and asked == [message.unique_id]
        assert end.commit_or_rollback == MessageSysFlag.TRANSACTION_COMMIT
        assert (end.tran_state_table_offset, end.commit_log_offset, end.msg_id) == (7, 700, message.unique_id)


CHECKS = [
    (lambda message: COMMIT, MessageSysFlag.TRANSACTION_COMMIT),
    (lambda message: ROLLBACK, MessageSysFlag.TRANSACTION_ROLLBACK),
    (lambda message: UNKNOWN, MessageSysFlag.TRANSACTION_NOT_TYPE),
    (lambda message: None, MessageSysFlag.TRANSACTION_NOT_TYPE),
    (lambda message: 1 / 0, MessageSysFlag.TRANSACTION_NOT_TYPE),
]


async def test_checks_are_answered_over_a_given_client() -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker_of(TransactionBroker, "a")
        cluster.topic("t", a=1)
        async with producer_of(cluster, lambda message: COMMIT, remoting=RemotingClient()) as producer:
            await producer.send(Message("t", b"x"))
            broker.ask(b"of another producer of the group")
            await until(lambda: len(broker.ends) == 1)


@pytest.mark.parametrize(("check", "flag"), CHECKS)
async def test_the_answer_to_a_check(check: Any, flag: int) -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker_of(TransactionBroker, "a")
        cluster.topic("t", a=1)
        async with producer_of(cluster, check) as producer:
            await producer.send(Message("t", b"x"))
            broker.ask(b"of another producer of the group")
            await until(lambda: len(broker.ends) == 1)
        ((end, _),) = broker.ends
        assert end.commit_or_rollback == flag and end.transaction_id == "K1"


async def test_bad_checks_are_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker_of(TransactionBroker, "a")
        cluster.topic("t", a=1)
        async with producer_of(cluster, lambda message: COMMIT) as producer:
            await producer.send(Message("t", b"x"))
            broker.ask_raw(b"")
            broker.ask_raw(b"\x00" * 200)
            broker.ask(b"x", group="other")
            broker.ask(b"x", key=None)
            await until(lambda: len(broker.ends) == 1)
            assert (await producer.send(Message("t", b"y"))).queue_offset == 1, "the connection lives"
        assert len(broker.ends[0][0].msg_id) == 32, "without a unique id it is the offset id"
        assert "Traceback" not in caplog.text


async def test_checks_in_work_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "MAX_CHECKS", 5)
    running = most = 0

    async def check(message: Any) -> TransactionState:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.05)
        running -= 1
        return COMMIT

    async with FakeCluster() as cluster:
        broker = await cluster.broker_of(TransactionBroker, "a")
        cluster.topic("t", a=1)
        async with producer_of(cluster, check, check_concurrency=2) as producer:
            await producer.send(Message("t", b"x"))
            for number in range(20):
                broker.ask(b"x", key=f"K{number}")
            await until(lambda: len(broker.ends) == 5)
            await asyncio.sleep(0.1)
        assert len(broker.ends) == 5 and most == 2


async def test_a_commit_that_is_not_confirmed_is_remembered_for_the_check() -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker_of(TransactionBroker, "a")
        cluster.topic("t", a=1)
        broker.answer = lambda code: (
            error_for(ResponseCode.SYSTEM_ERROR, "Find prepared transaction message failed")
            if code == RequestCode.END_TRANSACTION
            else None
        )
        async with producer_of(cluster, lambda message: ROLLBACK, end_timeout_ms=100) as producer:
            message = Message("t", b"x")
            with pytest.raises(TransactionUnconfirmed, match="is not confirmed"):
                async with producer.transaction(message):
                    pass
            broker.answer = lambda code: None
            broker.ask(b"x", key=message.unique_id)
            await until(lambda: len(broker.ends) == 1)
            assert broker.ends[0][0].commit_or_rollback == MessageSysFlag.TRANSACTION_COMMIT
            broker.ask(b"x", key=message.unique_id)
            await until(lambda: len(broker.ends) == 2)
            assert broker.ends[1][0].commit_or_rollback == 0, "a second commit would deliver it twice"


async def test_a_decision_says_nothing_of_the_next_transaction_of_the_same_message() -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker_of(TransactionBroker, "a")
        cluster.topic("t", a=1)
        busy = error_for(ResponseCode.SYSTEM_ERROR, "busy")
        broker.answer = lambda code: busy if code == RequestCode.END_TRANSACTION else None
        async with producer_of(cluster, lambda message: COMMIT, end_timeout_ms=100) as producer:
            message = Message("t", b"x")
            with pytest.raises(TransactionUnconfirmed):
                async with producer.transaction(message) as transaction:
                    await transaction.rollback()
            first = message.unique_id
            broker.answer = lambda code: None
            with pytest.raises(KeyError):
                async with producer.transaction(message):
                    assert message.unique_id != first
                    raise KeyError
            for key, decision in (
                (first, MessageSysFlag.TRANSACTION_ROLLBACK),
                (message.unique_id, MessageSysFlag.TRANSACTION_COMMIT),
            ):
                broker.ask(b"x", key=key)
                await until(lambda: bool(broker.ends))
                assert broker.ends.pop()[0].commit_or_rollback == decision


async def test_a_producer_that_has_not_sent_anything_is_asked() -> None:
    """The process that sent the half message is gone, and its successor has nothing to send."""
    async with FakeCluster() as cluster:
        broker = await cluster.broker_of(TransactionBroker, "a")
        async with producer_of(cluster, lambda message: COMMIT):
            await until(lambda: any(beat.producer_data_set for beat in broker.heartbeats))
            broker.ask(b"x")
            await until(lambda: len(broker.ends) == 1)
        assert broker.ends[0][0].commit_or_rollback == MessageSysFlag.TRANSACTION_COMMIT


async def test_a_refusal_that_repeating_cannot_help_is_raised_at_once() -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker_of(TransactionBroker, "a")
        cluster.topic("t", a=1)
        refusal = MQError(ResponseCode.ILLEGAL_OPERATION, "too late")
        broker.answer = lambda code: refusal if code == RequestCode.END_TRANSACTION else None
        async with producer_of(cluster, end_timeout_ms=10_000) as producer:
            began = time.monotonic()
            with pytest.raises(TransactionUnconfirmed, match="too late"):
                async with producer.transaction(Message("t", b"x")):
                    pass
            assert time.monotonic() - began < 1


async def test_the_commit_follows_the_half_message_to_the_next_master() -> None:
    async with FakeCluster() as cluster:
        old = await cluster.broker_of(TransactionBroker, "a")
        new = await cluster.broker_of(TransactionBroker, "a", 1)
        cluster.topic("t", a=1)
        async with producer_of(cluster) as producer:
            async with producer.transaction(Message("t", b"x")):
                old.kill()
                await old.server.stop()
                cluster.addresses["a"] = {0: new.address}
            assert old.ends == [] and len(new.ends) == 1
            await until(lambda: any(beat.producer_data_set for beat in new.heartbeats))


async def test_a_topic_that_was_created_for_the_half_message_is_waited_for() -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker_of(TransactionBroker, "a")
        cluster.topic("TBW102", a=4)
        async with producer_of(cluster) as producer, producer.transaction(Message("new", b"x")):
            asyncio.get_running_loop().call_later(0.1, lambda: cluster.topic("new", a=4))
        assert len(broker.ends) == 1


async def test_a_commit_asks_the_name_server_nothing_while_the_master_stays() -> None:
    async with FakeCluster() as cluster:
        await cluster.broker_of(TransactionBroker, "a")
        cluster.topic("t", a=1)
        async with producer_of(cluster) as producer:
            async with producer.transaction(Message("t", b"x")):
                asked = cluster.asked
            assert cluster.asked == asked


async def test_a_half_message_that_is_not_safe_is_rolled_back_and_nothing_runs() -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker_of(TransactionBroker, "a")
        cluster.topic("t", a=1)
        broker.send_code = int(ResponseCode.FLUSH_SLAVE_TIMEOUT)
        async with producer_of(cluster) as producer:
            with pytest.raises(NotSafelyStored):
                async with producer.transaction(Message("t", b"x")):
                    pytest.fail("the local transaction ran")
        assert [end.commit_or_rollback for end, _ in broker.ends] == [MessageSysFlag.TRANSACTION_ROLLBACK]


async def test_an_answer_without_the_place_of_the_half_message_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker_of(TransactionBroker, "a")
        cluster.topic("t", a=1)
        for junk in ("", "0", "zz", "00" * 16):
            monkeypatch.setattr("tests.unit.client.fakes.encode_message_id", lambda *_, junk=junk: junk)
            async with producer_of(cluster) as producer:
                if junk == "00" * 16:
                    async with producer.transaction(Message("t", b"x")):
                        pass
                    continue
                with pytest.raises(MQError, match="half message"):
                    async with producer.transaction(Message("t", b"x")):
                        pytest.fail("the local transaction ran")
        assert len(broker.ends) == 1


async def test_hooks_see_how_transactions_end() -> None:
    class Ends(Hook):
        def __init__(self) -> None:
            self.seen: list[TransactionEnd] = []

        def transaction_ended(self, end: TransactionEnd) -> None:
            self.seen.append(end)
            raise OSError("a bad hook")

    async with FakeCluster() as cluster:
        broker = await cluster.broker_of(TransactionBroker, "a")
        cluster.topic("t", a=1)
        ends = Ends()
        async with producer_of(cluster, lambda message: ROLLBACK, hooks=[ends]) as producer:
            async with producer.transaction(Message("t", b"x")):
                pass
            broker.ask(b"x")
            await until(lambda: len(broker.ends) == 2)
        assert [(end.state, end.from_check, end.group) for end in ends.seen] == [
            (COMMIT, False, "g"),
            (ROLLBACK, True, "g"),
        ]
        assert {end.address for end in ends.seen} == {broker.address}
