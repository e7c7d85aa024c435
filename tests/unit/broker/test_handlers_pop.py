"""Requests of pop consumers: codes for what is not allowed, hostile values, modes and assignments."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.broker.conftest import Served
from tests.unit.broker.fakes import JAVA, FakeConnection, ask, become_slave

from batonmq.broker.pop import reviver
from batonmq.broker.pop.assignments import _Routes
from batonmq.broker.pop.part import PopPart
from batonmq.net.dispatch import Reply, Request
from batonmq.protocol.bodies.clients import (
    ConsumerData,
    ConsumeType,
    HeartbeatData,
    MessageModel,
    MessageRequestMode,
    QueryAssignmentRequestBody,
    SetMessageRequestModeRequestBody,
)
from batonmq.protocol.bodies.groups import SubscriptionGroupConfig
from batonmq.protocol.bodies.pop import BatchAck, BatchAckMessageRequestBody, CheckPoint, bit_set_of
from batonmq.protocol.bodies.topics import TopicConfig
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError, TopicNotExistError
from batonmq.protocol.frame import Command
from batonmq.protocol.headers.broker.clients import (
    GetAllMessageRequestMode,
    Heartbeat,
    QueryAssignment,
    SetMessageRequestMode,
)
from batonmq.protocol.headers.broker.pop import (
    AckMessage,
    BatchAckMessage,
    ChangeInvisibleTime,
    Notification,
    PollingInfo,
    PopMessage,
    PopMessageResponse,
)
from batonmq.protocol.json import encode
from batonmq.protocol.message.record import StoredMessage, decode_record
from batonmq.protocol.pop import Receipt, parse_msg_offset_info, parse_start_offset_info
from batonmq.protocol.registry import Header


class Connection(FakeConnection):
    """Keeps the answers to requests that are answered later."""

    def __init__(self) -> None:
        super().__init__()
        self.replies: asyncio.Queue[Reply] = asyncio.Queue()

    def send_reply(self, request: Request, reply: Reply) -> None:
        self.replies.put_nowait(reply)


class Rig:
    def __init__(self, served: Served) -> None:
        self.served = served
        self.broker = served.broker
        self.part = next(part for part in served.parts if isinstance(part, PopPart))

    async def call(self, header: Header, body: Any = b"") -> Reply:
        """The answer, also if it comes later; raises the `MQError` of a refusal."""
        data = body if isinstance(body, bytes) else encode(body)
        connection = Connection()
        command = Command(header.code, header.to_ext(), data, language=JAVA, version=453)
        request = Request(connection, command)  # type: ignore[arg-type]
        outcome = self.served.dispatcher.handlers[int(header.code)](request)
        if inspect.isawaitable(outcome):
            outcome = await outcome
        reply = outcome
        if reply is None:
            async with asyncio.timeout(5):
                reply = await connection.replies.get()
        if reply.code not in (0, ResponseCode.POLLING_TIMEOUT, ResponseCode.POLLING_FULL):
            raise MQError(reply.code, reply.remark or "")
        return reply

    async def pop(self, **fields: Any) -> Reply:
        values: dict[str, Any] = {
            "consumer_group": "g",
            "topic": "TopicJ",
            "queue_id": -1,
            "max_msg_nums": 32,
            "invisible_time": 60_000,
            "poll_time": 0,
            "born_time": 0,
            "init_mode": 0,
        }
        return await self.call(PopMessage(**{**values, **fields}))

    async def receipts(self, **fields: Any) -> list[Receipt]:
        header = (await self.pop(**fields)).header
        assert isinstance(header, PopMessageResponse)
        starts = parse_start_offset_info(header.start_offset_info)
        return [
            Receipt(
                starts[flag, queue],
                header.pop_time,
                header.invisible_time,
                header.revive_qid,
                flag,
                "broker-a",
                queue,
                offset,
            )
            for (flag, queue), offsets in parse_msg_offset_info(header.msg_offset_info).items()
            for offset in offsets
        ]

    async def refused(self, header: Header, body: Any = b"") -> int:
        with pytest.raises(MQError) as error:
            await self.call(header, body)
        return int(error.value.code)

    async def restart(self) -> None:
        """The role ends, and begins again."""
        self.part.role_ending()
        await self.part.stop()
        await self.begin()

    async def begin(self) -> None:
        self.part.role_changed(self.broker.role)
        await self.part.popper.until_ready()


@pytest.fixture
async def rig(served: Served) -> AsyncIterator[Rig]:
    rig = Rig(served)
    served.broker.appender.listeners.append(rig.part.records_visible)
    await rig.begin()
    yield rig
    rig.part.role_ending()
    await rig.part.stop()
    await served.broker.appender.stop()


def ack_of(receipt: Receipt, **fields: Any) -> AckMessage:
    values: dict[str, Any] = {
        "consumer_group": "g",
        "topic": "TopicJ",
        "queue_id": receipt.queue_id,
        "extra_info": str(receipt),
        "offset": receipt.offset,
    }
    return AckMessage(**{**values, **fields})


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"topic": "Nowhere"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"queue_id": 4}, ResponseCode.INVALID_PARAMETER),
        ({"max_msg_nums": 33}, ResponseCode.INVALID_PARAMETER),
        ({"max_msg_nums": 0}, ResponseCode.INVALID_PARAMETER),
        ({"max_msg_nums": -(2**31)}, ResponseCode.INVALID_PARAMETER),
        ({"invisible_time": 0}, ResponseCode.INVALID_PARAMETER),
        ({"invisible_time": 2**63 - 1}, ResponseCode.INVALID_PARAMETER),
        ({"attempt_id": "a" * 1_025, "order": True}, ResponseCode.INVALID_PARAMETER),
        ({"consumer_group": "no group"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
        ({"exp": "a > 5", "exp_type": "SQL92"}, ResponseCode.SYSTEM_ERROR),
        ({"exp": "||", "exp_type": "TAG"}, ResponseCode.SUBSCRIPTION_PARSE_FAILED),
    ],
)
async def test_a_pop_that_is_not_allowed_gets_rocketmqs_code(
    rig: Rig, fields: dict[str, Any], code: ResponseCode
) -> None:
    with pytest.raises(MQError) as refused:
        await rig.pop(**fields)
    assert refused.value.code == code


@pytest.mark.parametrize(("poll_ms", "held_ms"), [(1_000, 950), (40, 0)])
@pytest.mark.parametrize("header", [PopMessage, Notification])
async def test_what_waits_is_answered_before_its_time_is_over(
    rig: Rig, header: type[PopMessage] | type[Notification], poll_ms: int, held_ms: int
) -> None:
    """A proxy's clients wait no longer than the poll time: an answer at its end is lost on the way."""
    fields: dict[str, Any] = {"poll_time": poll_ms, "born_time": 0}
    if header is PopMessage:
        fields |= {"max_msg_nums": 32, "invisible_time": 60_000, "init_mode": 0}
    waiting = asyncio.ensure_future(
        rig.call(header(consumer_group="g", topic="TopicJ", queue_id=-1, **fields))
    )
    await asyncio.sleep(0)
    assert rig.part.popper._held.next_deadline_ms() == rig.broker.clock.monotonic_ms() + held_ms
    rig.part.popper.release_all()
    assert (await waiting).code in (0, ResponseCode.POLLING_TIMEOUT)


async def test_a_pop_takes_what_its_sql92_filter_matches(rig: Rig) -> None:
    rig.broker.settings.broker = replace(rig.broker.settings.broker, enable_property_filter=True)
    for key in ("a", "b", "a"):
        rig.served.put(0, b"x", key=key)
    assert [r.offset for r in await rig.receipts(exp="KEYS = 'a'", exp_type="SQL92")] == [0, 2]
    for expression in ("", "KEYS ==", None):
        assert (
            await rig.refused(
                PopMessage(
                    consumer_group="g",
                    topic="TopicJ",
                    queue_id=-1,
                    max_msg_nums=32,
                    invisible_time=60_000,
                    poll_time=0,
                    born_time=0,
                    init_mode=0,
                    exp=expression,
                    exp_type="SQL92",
                )
            )
            == ResponseCode.SUBSCRIPTION_PARSE_FAILED
        )


async def test_permissions_and_roles_are_checked(rig: Rig) -> None:
    tables = rig.broker.tables
    tables.topics.update(TopicConfig(topic_name="Closed", read_queue_nums=1, write_queue_nums=1, perm=2))
    tables.subscriptions.update(SubscriptionGroupConfig(group_name="off", consume_enable=False))
    for fields in ({"topic": "Closed"}, {"consumer_group": "off"}):
        with pytest.raises(MQError) as refused:
            await rig.pop(**fields)
        assert refused.value.code == ResponseCode.NO_PERMISSION
    become_slave(rig.broker)
    with pytest.raises(MQError) as busy:
        await rig.pop()
    assert busy.value.code == ResponseCode.SYSTEM_BUSY


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1 2 3",
        "a b c d e f g h",
        "1 2 3 4 0 b 0 -1",
        "1 2 3 4 0 b 0 99999999999999999999",
        "1 2 3 99999999999 0 b 0 1",
        "1 2 3 4 0 b 0",
        "\u0661 2 3 4 0 b 0 1",
        "x" * 100_000,
    ],
)
async def test_what_is_not_a_receipt_is_refused(rig: Rig, text: str) -> None:
    rig.served.put(0, b"a")
    ack = AckMessage("g", "TopicJ", 0, text, 0)
    change = ChangeInvisibleTime("g", "TopicJ", 0, text, 0, 1_000)
    assert await rig.refused(ack) == ResponseCode.INVALID_PARAMETER
    assert await rig.refused(change) == ResponseCode.INVALID_PARAMETER


async def test_receipts_of_the_proxy_with_the_physical_offset_behind_are_good(rig: Rig) -> None:
    for body in (b"a", b"b"):
        rig.served.put(0, body)
    first, second = await rig.receipts()
    await rig.call(ack_of(first, extra_info=f"{first} 1234"))
    await rig.call(ChangeInvisibleTime("g", "TopicJ", 0, f"{second} 1234", second.offset, 30_000))
    assert await rig.receipts() == []


async def test_acks_of_nothing_are_refused(rig: Rig) -> None:
    rig.served.put(0, b"a")
    (receipt,) = await rig.receipts()
    for fields, code in (
        ({"topic": "Nowhere"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"queue_id": 4}, ResponseCode.MESSAGE_ILLEGAL),
        ({"queue_id": -1}, ResponseCode.MESSAGE_ILLEGAL),
        ({"offset": 2}, ResponseCode.NO_MESSAGE),
        ({"offset": 1}, ResponseCode.NO_MESSAGE),
        ({"consumer_group": "other"}, ResponseCode.NO_MESSAGE),
    ):
        assert await rig.refused(ack_of(receipt, **fields)) == code, fields
    await rig.call(ack_of(receipt))
    ordered = receipt._replace(revive_queue=999)
    assert await rig.refused(ack_of(ordered, offset=1)) == ResponseCode.MESSAGE_ILLEGAL


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", ResponseCode.NO_MESSAGE),
        (b"{}", ResponseCode.NO_MESSAGE),
        (b"[", ResponseCode.SYSTEM_ERROR),
        (b'{"acks":[{"b":"!"}]}', ResponseCode.SYSTEM_ERROR),
        (b'{"acks":[{"b":"' + b"A" * 100_000 + b'"}]}', ResponseCode.SYSTEM_ERROR),
        (b'{"acks":[' + b",".join([b"{}"] * 10_001) + b"]}", ResponseCode.INVALID_PARAMETER),
    ],
)
async def test_hostile_batches_of_acks_are_refused(rig: Rig, body: bytes, code: ResponseCode) -> None:
    assert await rig.refused(BatchAckMessage(), body) == code


async def test_a_batch_acknowledges_what_it_can(rig: Rig) -> None:
    for n in range(3):
        rig.served.put(1, b"%d" % n)
    receipt, *_ = await rig.receipts()
    ack = BatchAck(
        "g", "TopicJ", "0", 0, 1, receipt.revive_queue, receipt.pop_time, 60_000, bit_set_of([0, 2, 77])
    )
    lost = BatchAck("g", "Nowhere", "0", 0, 0, 0, 1, 1, bit_set_of([0]))
    odd = BatchAck("g", "TopicJ", "7", 0, 0, 0, 1, 1, bit_set_of([0]))
    await rig.call(BatchAckMessage(), BatchAckMessageRequestBody("broker-a", [lost, ack, odd]))
    (entry,) = rig.part.check_points
    assert entry.unacknowledged == [1]


async def test_a_batch_of_acks_with_numbers_beyond_javas_leaves_nothing_in_the_log(rig: Rig) -> None:
    """RocketMQ brokers of the group read the revive queues, too."""
    rig.served.put(0, b"a")
    end, huge = rig.broker.store.max_offset, 1 << 63
    for times in ((-huge - 1, 2 * huge), (0, huge)):
        ack = BatchAck("g", "TopicJ", "0", 0, 0, 0, *times, bit_set_of([0]))
        body = BatchAckMessageRequestBody("broker-a", [ack])
        assert await rig.refused(BatchAckMessage(), body) == ResponseCode.SYSTEM_ERROR
    await asyncio.sleep(0.01)
    assert rig.broker.store.max_offset == end


async def test_pops_wait_up_to_their_limit(rig: Rig) -> None:
    rig.broker.settings.broker = type(rig.broker.settings.broker)(broker_name="broker-a", pop_polling_size=1)
    waiting = [asyncio.ensure_future(rig.pop(poll_time=60_000)) for _ in range(2)]
    await asyncio.sleep(0)
    info = await ask(rig.served.dispatcher, PollingInfo("g", "TopicJ", -1))
    assert info.header is not None and info.header.to_ext() == {"pollingNum": "2"}
    assert (await rig.pop(poll_time=60_000)).code == ResponseCode.POLLING_FULL
    rig.part.popper.release_all()
    for each in waiting:
        assert (await each).code == ResponseCode.POLLING_TIMEOUT


async def test_a_message_with_the_greatest_count_of_attempts_becomes_a_dead_letter(rig: Rig) -> None:
    """Senders choose the count. One more would not fit into a record, and nothing would be revived."""
    store, most = rig.broker.store, (1 << 31) - 1
    store.put([StoredMessage(topic="TopicJ", queue_id=0, body=b"worn out", reconsume_times=most)])
    rig.broker.appender.progress()
    await rig.receipts(invisible_time=10_000)
    rig.served.clock.advance(20_000)
    await rig.restart()
    async with asyncio.timeout(5):
        while not store.queue_bounds("%DLQ%g", 0).max_offset:
            await asyncio.sleep(0.02)
    dead = decode_record(store.get("%DLQ%g", 0, 0, 1).buffers[0])
    assert (dead.body, dead.reconsume_times) == (b"worn out", most)


async def test_junk_in_the_revive_queues_is_passed_over(rig: Rig) -> None:
    rig.served.put(0, b"a")
    await rig.receipts()
    topic = rig.part.journal.topic
    bodies = [
        (b"ck", b"\xff"),
        (b"ck", b"3-17"),
        (b"ck", b'{"t":"TopicJ","c":"g","n":1000000000000}'),
        (b"ck", encode(CheckPoint(topic="TopicJ", consumer_group="g", differences=[0], next_offset=1 << 62))),
        (b"ack", b"[]"),
        (b"bAck", b'{"aol":[-1,99999999999999]}'),
        (b"order", b'{"t":"TopicJ","c":"g","nb":-5,"info":{"o":[1]}}'),
        (b"order", b'{"t":"TopicJ","c":"g","info":{"o":[1,9,3],"cm":-1}}'),
        (b"other", b"{}"),
    ]
    for queue in range(8):
        for tag, body in bodies:
            message = StoredMessage(
                topic=topic, queue_id=queue, body=body, properties=b"TAGS\x01" + tag + b"\x02"
            )
            rig.broker.store.put([message])
    rig.broker.store.dispatch()
    await rig.restart()
    assert await rig.receipts() == []
    assert {entry.key[:4] for entry in rig.part.check_points} >= {("TopicJ", "g", 0, 0)}


async def test_what_is_outstanding_is_known_again_after_a_switch(rig: Rig) -> None:
    for n in range(6):
        rig.served.put(n % 4, b"%d" % n)
    receipts = await rig.receipts()
    await rig.call(ack_of(receipts[0]))
    before = {entry.key: entry.unacknowledged for entry in rig.part.check_points}
    for _ in range(3):
        await rig.restart()
        assert {entry.key: entry.unacknowledged for entry in rig.part.check_points} == before
        assert await rig.receipts() == []


async def test_a_record_that_was_refused_hides_nothing(rig: Rig) -> None:
    rig.served.put(0, b"a")
    rig.broker.role.stopping = True
    with pytest.raises(MQError) as refused:
        await rig.pop()
    assert refused.value.code == ResponseCode.SERVICE_NOT_AVAILABLE
    rig.broker.role.stopping = False
    assert [each.offset for each in await rig.receipts()] == [0]


async def test_an_ack_that_was_refused_does_not_count(rig: Rig) -> None:
    rig.served.put(0, b"a")
    (receipt,) = await rig.receipts()
    rig.broker.role.stopping = True
    assert await rig.refused(ack_of(receipt)) == ResponseCode.SERVICE_NOT_AVAILABLE
    rig.broker.role.stopping = False
    (entry,) = rig.part.check_points
    assert entry.unacknowledged == [0]
    await rig.call(ack_of(receipt))
    assert len(rig.part.check_points) == 0


async def test_a_repeated_ack_succeeds_also_at_a_new_master(rig: Rig) -> None:
    """A client whose answer was lost in a failover repeats the ack, which was not refused."""
    for n in range(3):
        rig.served.put(0, b"%d" % n)
    whole = await rig.receipts(max_msg_nums=2)
    (single,) = await rig.receipts()
    for receipt in (*whole, single):
        await rig.call(ack_of(receipt))
    assert len(rig.part.check_points) == 0
    for _ in range(2):
        for receipt in (*whole, single):
            await rig.call(ack_of(receipt))
            stranger = receipt._replace(pop_time=receipt.pop_time - 1)
            assert await rig.refused(ack_of(stranger)) == ResponseCode.NO_MESSAGE
        await rig.restart()


async def test_an_old_receipt_is_refused_also_at_a_new_master(rig: Rig) -> None:
    """The ack record of a message that got another check point is none of a consumer."""
    for n in range(3):
        rig.served.put(0, b"%d" % n)
    receipts = [*await rig.receipts(max_msg_nums=2), *await rig.receipts()]
    for receipt in receipts[1:]:
        text = str(receipt)
        await rig.call(ChangeInvisibleTime("g", "TopicJ", 0, text, receipt.offset, 30_000))
    for _ in range(2):
        for receipt in receipts[1:]:
            assert await rig.refused(ack_of(receipt)) == ResponseCode.NO_MESSAGE
        await rig.restart()
    await rig.call(ack_of(receipts[0]))
    assert await rig.refused(ack_of(receipts[1])) == ResponseCode.NO_MESSAGE


async def test_acks_of_one_turn_share_a_record(rig: Rig) -> None:
    for n in range(20):
        rig.served.put(0, b"%d" % n)
    receipts = await rig.receipts()
    queue, topic = receipts[0].revive_queue, rig.part.journal.topic
    await asyncio.gather(*(rig.call(ack_of(each)) for each in receipts))
    assert rig.broker.store.queue_bounds(topic, queue).max_offset == 2


async def test_a_revive_queue_that_is_pinned_moves_on(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("batonmq.broker.pop.reviver.PIN_RECORDS", 20)
    rig.broker.settings.broker = type(rig.broker.settings.broker)(broker_name="broker-a", revive_queue_num=1)
    rig.served.put(0, b"pinned")
    (pinned,) = await rig.receipts()
    for n in range(60):
        rig.served.put(0, b"%d" % n)
        (receipt,) = await rig.receipts()
        await rig.call(ack_of(receipt))
    first = rig.part.journal.floors.first(0)
    for _ in range(4):
        await asyncio.to_thread(rig.broker.store.flush)
        rig.part.journal.settle()
        rig.part.journal.on_tick()
        await asyncio.sleep(0.05)
    after = rig.part.journal.floors.first(0)
    assert first is not None and after is not None and after > first + 50
    await rig.restart()
    assert [entry.key[3] for entry in rig.part.check_points] == [0]
    await rig.call(ack_of(pinned))
    assert len(rig.part.check_points) == 0


async def test_java_timers_deliver_check_points_later(rig: Rig) -> None:
    """A store that a RocketMQ broker had before: its timer wheel still holds check points."""
    rig.served.put(0, b"a")
    rig.served.put(0, b"b")
    rig.broker.tables.offsets.commit("g", "TopicJ", 0, 2)
    rig.broker.tables.subscriptions.get_or_create("g")
    now_ms = rig.served.clock.now_ms()
    acked = Receipt(0, now_ms - 100, 10_000, 3, "0", "broker-a", 0, 1)
    assert await rig.refused(ack_of(acked)) == ResponseCode.NO_MESSAGE
    await asyncio.sleep(0)
    record = CheckPoint(0, now_ms - 100, 10_000, 0, 2, 0, "TopicJ", "g", differences=[0, 1])
    message = StoredMessage(
        topic=rig.part.journal.topic, queue_id=3, body=encode(record), properties=b"TAGS\x01ck\x02"
    )
    rig.broker.store.put([message])
    rig.broker.appender.progress()
    for _ in range(20):
        await asyncio.sleep(0.01)
    assert [entry.unacknowledged for entry in rig.part.check_points] == [[0]]


# -- modes and assignments


async def test_a_mode_is_kept_and_read_again(rig: Rig, served: Served) -> None:
    mode = SetMessageRequestModeRequestBody("TopicJ", "g", MessageRequestMode.POP, 2)
    await rig.call(SetMessageRequestMode(), mode)
    answer = await rig.call(GetAllMessageRequestMode())
    assert json.loads(bytes(answer.body)) == {  # type: ignore[arg-type]
        "messageRequestModeMap": {
            "TopicJ": {"g": {"topic": "TopicJ", "consumerGroup": "g", "mode": "POP", "popShareQueueNum": 2}}
        }
    }
    await served.broker.tables.persistence.written()
    assert Path(served.root, "config", "messageRequestMode.json").exists()
    for topic, code in (
        ("Nowhere", ResponseCode.TOPIC_NOT_EXIST),
        ("%RETRY%g", ResponseCode.NO_PERMISSION),
    ):
        mode.topic = topic
        assert await rig.refused(SetMessageRequestMode(), mode) == code


async def test_the_broker_shares_queues_among_the_clients_of_a_group(rig: Rig) -> None:
    async def assigned(client: str, **fields: Any) -> Any:
        values = {
            "topic": "TopicJ",
            "consumer_group": "g",
            "client_id": client,
            "strategy_name": "AVG",
            "message_model": MessageModel.CLUSTERING,
        }
        body = QueryAssignmentRequestBody(**{**values, **fields})
        answer = json.loads(bytes((await rig.call(QueryAssignment(), body)).body))  # type: ignore[arg-type]
        found = answer["messageQueueAssignments"]
        return found and [(each["messageQueue"]["queueId"], each["mode"]) for each in found]

    assert await assigned("c0") is None
    for n in range(2):
        data = HeartbeatData(f"c{n}", [], [ConsumerData("g", ConsumeType.PASSIVELY, MessageModel.CLUSTERING)])
        await ask(rig.served.dispatcher, Heartbeat(), data, connection=FakeConnection(f"10.0.0.{n}:1"))
    assert await assigned("c0") == [(0, "PULL"), (1, "PULL")]
    assert await assigned("c1", strategy_name="AVG_BY_CIRCLE") == [(1, "PULL"), (3, "PULL")]
    assert await assigned("c1", strategy_name="none") is None
    assert await assigned("c1", topic="Nowhere") is None
    assert await assigned("c1", message_model=MessageModel.BROADCASTING) == [(n, "PULL") for n in range(4)]
    await rig.call(
        SetMessageRequestMode(), SetMessageRequestModeRequestBody("TopicJ", "g", MessageRequestMode.POP)
    )
    assert await assigned("c0") == [(-1, "POP")]


async def test_a_new_master_believes_the_furthest_of_table_and_log(rig: Rig) -> None:
    """One revive queue is read from an old batch on, while the later batches of others are settled."""
    rig.broker.settings.broker = type(rig.broker.settings.broker)(broker_name="broker-a", revive_queue_num=2)
    for n in range(6):
        rig.served.put(0, b"%d" % n)
        receipts = await rig.receipts()
        if n:
            await rig.call(ack_of(receipts[0]))
    for _ in range(3):
        await asyncio.to_thread(rig.broker.store.flush)
        rig.part.journal.settle()
    assert rig.broker.tables.offsets.query("g", "TopicJ", 0) == 6
    await rig.restart()
    assert await rig.receipts() == []


async def test_a_reset_survives_a_switch_although_the_log_was_further(rig: Rig) -> None:
    for n in range(4):
        rig.served.put(0, b"%d" % n)
    await rig.receipts()
    rig.broker.tables.offsets.reset("g", "TopicJ", 0, 4)
    assert await rig.receipts() == []
    rig.broker.tables.offsets.reset("g", "TopicJ", 0, 2)
    assert [each.offset for each in await rig.receipts(max_msg_nums=1)] == [2]
    await rig.restart()
    assert [each.offset for each in await rig.receipts()] == [3]


async def test_the_routes_of_what_cannot_be_a_topic_are_not_kept(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    class NoTopics:
        async def ask(self, header: Header) -> None:
            raise TopicNotExistError(ResponseCode.TOPIC_NOT_EXIST, "no such topic")

    routes = _Routes(rig.broker)
    monkeypatch.setattr(routes, "_name_servers", NoTopics)
    assert await routes.queues("Nowhere") is None
    assert await routes.queues("x" * 1_000_000) is None
    assert list(routes._routes) == ["Nowhere"]


@pytest.mark.parametrize("ordered", [False, True])
async def test_a_clock_that_is_set_back_hides_messages_for_one_more_invisible_time(
    rig: Rig, ordered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reviver, "LOOK_AGAIN_S", 0.01)
    clock = rig.served.clock
    rig.served.put(0, b"x")
    assert len(await rig.receipts(order=ordered)) == 1
    await asyncio.sleep(0.03)
    clock.set_wall(clock.now_ms() - 3_600_000)
    await asyncio.sleep(0.03)
    assert await rig.receipts(order=ordered) == []
    clock.advance(59_000)
    await asyncio.sleep(0.03)
    assert await rig.receipts(order=ordered) == []
    clock.advance(1_000)
    async with asyncio.timeout(5):
        while not await rig.receipts(order=ordered):
            await asyncio.sleep(0.01)
