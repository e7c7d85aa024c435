"""Pop consumption on a real broker: what is handed out, hidden, acknowledged and brought back."""

import asyncio
import random
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from tests.integration.broker.rig import configs, program, v2, write_conf

from batonmq.broker.pop import looks as pop_looks
from batonmq.broker.pop import reviver
from batonmq.broker.pop.part import PopPart
from batonmq.broker.pop.taker import LOG_FULL_S
from batonmq.broker.service import BrokerService
from batonmq.net import RemotingClient, Response
from batonmq.protocol.bodies.groups import SubscriptionGroupConfig
from batonmq.protocol.bodies.pop import BatchAck, BatchAckMessageRequestBody, bit_set_of
from batonmq.protocol.codes import MessageSysFlag, ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.admin import ResetOffset, UpdateBrokerConfig
from batonmq.protocol.headers.broker.pop import (
    AckMessage,
    BatchAckMessage,
    ChangeInvisibleTime,
    ChangeInvisibleTimeResponse,
    Notification,
    NotificationResponse,
    PeekMessage,
    PollingInfo,
    PollingInfoResponse,
    PopMessage,
    PopMessageResponse,
)
from batonmq.protocol.headers.broker.topics import CreateTopic, DeleteTopic, UpdateSubscriptionGroup
from batonmq.protocol.json import encode
from batonmq.protocol.message.properties import PROPERTY_POP_CK
from batonmq.protocol.message.record import MessageExt, decode_records
from batonmq.protocol.pop import (
    Receipt,
    parse_msg_offset_info,
    parse_order_count_info,
    parse_receipt,
    parse_start_offset_info,
    queue_offset_key,
    retry_flag,
)

POPPED = (0, ResponseCode.POLLING_TIMEOUT, ResponseCode.POLLING_FULL)


@dataclass
class Popped:
    """A message as a client sees it."""

    record: MessageExt
    receipt: Receipt

    @property
    def body(self) -> bytes:
        return self.record.body


@dataclass
class Rig:
    """One broker, and a client that makes receipts from answers as RocketMQ's clients do."""

    root: Path
    keys: dict[str, Any]
    client: RemotingClient = field(default_factory=RemotingClient)
    broker: BrokerService | None = None
    address: str = ""
    """Of a broker in another process."""

    async def start(self) -> None:
        self.broker = BrokerService(*configs(self.root, **self.keys))
        await self.broker.start()

    async def restart(self) -> None:
        await self.stop()
        self.client = RemotingClient()
        await self.start()

    async def stop(self) -> None:
        await self.client.close()
        assert self.broker is not None
        await self.broker.stop()

    @property
    def part(self) -> PopPart:
        assert self.broker is not None
        return self.broker.part(PopPart)

    async def call(self, header: Any, body: bytes = b"", **options: Any) -> Response:
        address = self.address
        if self.broker is not None:
            address = f"127.0.0.1:{self.broker.port}"
        return await self.client.call(address, header, body, **options)

    async def create(self, topic: str = "T", queues: int = 1, attributes: str | None = None) -> None:
        await self.call(
            CreateTopic(
                attributes=attributes,
                topic=topic,
                default_topic="TBW102",
                read_queue_nums=queues,
                write_queue_nums=queues,
                perm=6,
                topic_filter_type="SINGLE_TAG",
                order=False,
            )
        )

    async def send(self, *bodies: bytes, topic: str = "T", queue: int = 0, tags: str = "") -> None:
        for body in bodies:
            await self.call(v2(topic, queue, properties=f"TAGS\x01{tags}\x02" if tags else ""), body)

    async def ask(self, topic: str = "T", group: str = "g", **fields: Any) -> Response:
        values: dict[str, Any] = {
            "consumer_group": group,
            "topic": topic,
            "queue_id": -1,
            "max_msg_nums": 32,
            "invisible_time": 60_000,
            "poll_time": 0,
            "born_time": 0,
            "init_mode": 0,
        }
        return await self.call(PopMessage(**{**values, **fields}), accept=POPPED, timeout_ms=20_000)

    async def pop(self, topic: str = "T", group: str = "g", **fields: Any) -> list[Popped]:
        answer = await self.ask(topic, group, **fields)
        header = answer.header
        assert isinstance(header, PopMessageResponse)
        starts = parse_start_offset_info(header.start_offset_info)
        offsets = parse_msg_offset_info(header.msg_offset_info)
        found = []
        for record in decode_records(answer.body):
            known = record.properties.get(PROPERTY_POP_CK)
            if known is not None:
                receipt = parse_receipt(known)
            else:
                place = retry_flag(record.topic), record.queue_id
                assert record.queue_offset in offsets[place]
                receipt = Receipt(
                    starts[place],
                    header.pop_time,
                    header.invisible_time,
                    header.revive_qid,
                    place[0],
                    "b",
                    record.queue_id,
                    record.queue_offset,
                )
            found.append(Popped(record, receipt))
        assert len(found) == sum(map(len, offsets.values()))
        return found

    async def bodies(self, **fields: Any) -> list[bytes]:
        return [each.body for each in await self.pop(**fields)]

    async def ack(self, *popped: Popped, topic: str = "T", group: str = "g") -> None:
        for each in popped:
            receipt = each.receipt
            await self.call(
                AckMessage(
                    consumer_group=group,
                    topic=receipt.stored_topic(topic, group),
                    queue_id=receipt.queue_id,
                    extra_info=str(receipt),
                    offset=receipt.offset,
                )
            )

    async def change(
        self, popped: Popped, invisible_ms: int, topic: str = "T", group: str = "g"
    ) -> ChangeInvisibleTimeResponse:
        receipt = popped.receipt
        answer = await self.call(
            ChangeInvisibleTime(
                consumer_group=group,
                topic=receipt.stored_topic(topic, group),
                queue_id=receipt.queue_id,
                extra_info=str(receipt),
                offset=receipt.offset,
                invisible_time=invisible_ms,
            )
        )
        assert isinstance(answer.header, ChangeInvisibleTimeResponse)
        return answer.header


Starter = Callable[..., Awaitable[Rig]]


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Starter]:
    running: list[Rig] = []

    async def starter(**keys: Any) -> Rig:
        rig = Rig(tmp_path / "store", keys)
        await rig.start()
        running.append(rig)
        await rig.create()
        return rig

    yield starter
    for rig in running:
        await rig.stop()


async def test_a_popped_message_is_hidden_and_an_acknowledged_one_is_gone(start: Starter) -> None:
    rig = await start()
    await rig.send(b"a", b"b")
    popped = await rig.pop(invisible_time=300)
    assert [each.body for each in popped] == [b"a", b"b"]
    assert await rig.bodies() == []
    await rig.ack(popped[0])
    again = await rig.pop(poll_time=5_000)
    assert [each.body for each in again] == [b"b"]
    assert again[0].record.reconsume_times == 1
    assert again[0].record.topic == "T"
    assert again[0].receipt.retry == "1"
    await rig.ack(*again)
    await asyncio.sleep(0.5)
    assert await rig.bodies() == []
    assert len(rig.part.check_points) == 0


async def test_a_waiting_pop_gets_the_next_message(start: Starter) -> None:
    rig = await start()
    waiting = asyncio.ensure_future(rig.bodies(poll_time=10_000))
    await asyncio.sleep(0.1)
    answer = await rig.call(PollingInfo(consumer_group="g", topic="T", queue_id=-1))
    assert isinstance(answer.header, PollingInfoResponse)
    assert answer.header.polling_num == 1
    await rig.send(b"x")
    assert await waiting == [b"x"]


async def test_a_pop_without_messages_is_answered_when_its_time_is_over(start: Starter) -> None:
    rig = await start()
    answer = await rig.ask(poll_time=100)
    assert answer.code == ResponseCode.POLLING_TIMEOUT


async def test_each_message_goes_to_one_of_many_consumers(start: Starter) -> None:
    rig = await start()
    await rig.create("Many", 4)
    sent = {f"m{n}".encode() for n in range(400)}
    for n, body in enumerate(sorted(sent)):
        await rig.send(body, topic="Many", queue=n % 4)
    got: list[bytes] = []

    async def consume() -> None:
        while popped := await rig.pop(topic="Many", max_msg_nums=random.randint(1, 32), poll_time=200):
            got.extend(each.body for each in popped)
            await rig.ack(*popped, topic="Many")

    await asyncio.gather(*(consume() for _ in range(8)))
    assert sorted(got) == sorted(sent)


async def test_outstanding_messages_come_back_after_a_restart_and_acknowledged_ones_do_not(
    start: Starter,
) -> None:
    rig = await start()
    await rig.send(*(b"%d" % n for n in range(10)))
    popped = await rig.pop(invisible_time=1_500)
    await rig.ack(*popped[:4])
    await rig.restart()
    assert await rig.bodies() == []
    found: list[bytes] = []
    while len(found) < 6:
        again = await rig.pop(poll_time=5_000)
        assert again
        found += [each.body for each in again]
        await rig.ack(*again)
    assert sorted(found) == [b"%d" % n for n in range(4, 10)]
    assert await rig.bodies(poll_time=1_000) == []


async def test_a_changed_invisible_time_counts_from_now(start: Starter) -> None:
    rig = await start()
    await rig.send(b"a")
    (popped,) = await rig.pop(invisible_time=300)
    changed = await rig.change(popped, 1_200)
    await asyncio.sleep(0.6)
    assert await rig.bodies() == []
    with pytest.raises(MQError) as refused:
        await rig.change(popped, 1_000)
    assert refused.value.code == ResponseCode.NO_MESSAGE
    receipt = popped.receipt._replace(
        start_offset=popped.receipt.offset, pop_time=changed.pop_time, invisible_time=changed.invisible_time
    )
    await rig.ack(Popped(popped.record, receipt))
    await asyncio.sleep(1.0)
    assert await rig.bodies() == []


async def test_an_old_receipt_does_not_acknowledge_after_a_change(start: Starter) -> None:
    rig = await start()
    await rig.send(b"a", b"b")
    popped = await rig.pop()
    await rig.change(popped[0], 500)
    with pytest.raises(MQError) as late:
        await rig.ack(popped[0])
    assert late.value.code == ResponseCode.NO_MESSAGE
    await rig.ack(popped[1])
    assert await rig.bodies(poll_time=5_000) == [b"a"]


async def test_a_batch_of_acks_settles_its_messages(start: Starter) -> None:
    rig = await start()
    await rig.send(b"a", b"b", b"c")
    popped = await rig.pop(invisible_time=400)
    receipt = popped[0].receipt
    ack = BatchAck(
        consumer_group="g",
        topic="T",
        start_offset=receipt.start_offset,
        queue_id=0,
        revive_queue_id=receipt.revive_queue,
        pop_time=receipt.pop_time,
        invisible_time=receipt.invisible_time,
        bit_set=bit_set_of([0, 2]),
    )
    await rig.call(BatchAckMessage(), encode(BatchAckMessageRequestBody("b", [ack])))
    assert await rig.bodies(poll_time=3_000) == [b"b"]


async def test_a_message_without_room_for_a_receipt_comes_again(start: Starter) -> None:
    rig = await start()
    await rig.call(v2("T", properties=f"K\1{'x' * 32_664}\2"), b"a")
    assert await rig.bodies(invisible_time=1) == [b"a"]
    again = await rig.pop(poll_time=5_000)
    assert [(each.body, each.receipt.retry) for each in again] == [(b"a", "1")]
    await rig.ack(*again)
    await rig.send(b"b")
    assert await rig.bodies() == [b"b"]


async def test_a_late_ack_may_be_repeated_for_ever(start: Starter) -> None:
    rig = await start()
    await rig.send(b"a")
    (popped,) = await rig.pop()
    await rig.ack(popped)
    for _ in range(20):
        await rig.ack(popped)  # its answer may have been lost
    assert not rig.part.acknowledger.early


async def test_pops_that_find_too_many_unacknowledged_batches_leave_one_timer(
    start: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = await start(pop_ck_max_buffer_size=1)
    await rig.send(b"a", b"b")
    assert await rig.bodies(max_msg_nums=1) == [b"a"]
    timers: list[float] = []
    loop = asyncio.get_running_loop()
    call_later = loop.call_later

    def counted(delay: float, *args: Any) -> asyncio.TimerHandle:
        if delay == LOG_FULL_S:
            timers.append(delay)
        return call_later(delay, *args)

    monkeypatch.setattr(loop, "call_later", counted)
    for _ in range(5):
        assert await rig.bodies() == []
    assert timers == [LOG_FULL_S]


async def test_a_message_that_is_never_acknowledged_becomes_a_dead_letter(start: Starter) -> None:
    rig = await start()
    await rig.send(b"a")
    attempts = 0
    while await rig.pop(invisible_time=1, poll_time=1_000):
        attempts += 1
    assert attempts == 17  # retryMaxTimes 16, and the first
    assert rig.broker is not None
    assert rig.broker.broker.store.queue_bounds("%DLQ%g", 0).max_offset == 1


async def test_a_popped_message_comes_back_although_messages_must_be_smaller_now(start: Starter) -> None:
    """It was acknowledged when `maxMessageSize` was greater. So do its next retry and its dead letter."""
    rig = await start()
    body = bytes(5_000)
    await rig.call(
        UpdateSubscriptionGroup(), encode(SubscriptionGroupConfig(group_name="g", retry_max_times=2))
    )
    await rig.send(body)
    assert await rig.bodies(invisible_time=300) == [body]
    await rig.call(UpdateBrokerConfig(), b"maxMessageSize=1000")
    with pytest.raises(MQError, match="msg body length limit 1000B"):
        await rig.send(body)
    for _ in range(2):
        assert await rig.bodies(invisible_time=300, poll_time=5_000) == [body]
    await asyncio.sleep(1)
    assert rig.broker is not None
    assert rig.broker.broker.store.get("%DLQ%g", 0, 0, 1).size > len(body)


async def test_tags_are_filtered_and_passed_over(start: Starter) -> None:
    rig = await start()
    for n in range(20):
        await rig.send(b"%d" % n, tags="odd" if n % 2 else "even")
    popped = await rig.pop(exp="odd", exp_type="TAG", invisible_time=300)
    assert [each.body for each in popped] == [b"%d" % n for n in range(1, 20, 2)]
    await rig.ack(*popped[1:])
    assert await rig.bodies(exp="odd", poll_time=3_000) == [b"1"]


async def test_a_filter_that_passes_over_a_backlog_of_many_queues_leaves_turns_to_others(
    start: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn = 0
    looks: Counter[int] = Counter()

    def counted(topic: str, group: str) -> None:
        looks[turn] += 1
        wake(topic, group)

    async def take_turns() -> None:
        nonlocal turn
        while True:
            await asyncio.sleep(0)
            turn += 1

    rig = await start(enable_property_filter=True)
    await rig.call(UpdateBrokerConfig(), b"maxFilterMessageSize=100\n")
    queues, messages = 8, 40
    await rig.create("U", queues)
    for begin in range(0, queues * messages, 40):
        sends = (rig.send(b"x", topic="U", queue=n % queues, tags="no") for n in range(begin, begin + 40))
        await asyncio.gather(*sends)
    await rig.send(b"hit", topic="U", queue=5, tags="yes")
    waiting = rig.part.popper._looks
    wake, waiting._look = waiting._look, counted
    monkeypatch.setattr(pop_looks, "TURN_US", 0)
    others = asyncio.ensure_future(take_turns())
    found = await rig.bodies(topic="U", exp="TAGS = 'yes'", exp_type="SQL92", max_msg_nums=1, poll_time=5_000)
    others.cancel()
    assert found == [b"hit"]
    # One look sees 5 messages of each queue.
    assert messages // 5 - 1 <= looks.total() <= messages // 5 + 4
    assert max(looks.values()) == 1, looks


async def test_a_filtered_pop_does_not_look_on_while_too_many_batches_are_unacknowledged(
    start: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = await start(enable_property_filter=True)
    await rig.call(UpdateBrokerConfig(), b"maxFilterMessageSize=20\n")
    await rig.send(*[b"x"] * 40, tags="no")
    await rig.send(b"hit", tags="yes")
    assert len(await rig.pop(group="other", max_msg_nums=1)) == 1
    waiting = rig.part.popper._looks
    wake, looks = waiting._look, 0

    def allow(batches: int) -> None:
        assert rig.broker is not None
        settings = rig.broker.broker.settings
        settings.broker = replace(settings.broker, pop_ck_max_buffer_size=batches)

    def counted(topic: str, group: str) -> None:
        nonlocal looks
        looks += 1
        if looks == 2:
            allow(1)
        wake(topic, group)

    waiting._look = counted
    monkeypatch.setattr(pop_looks, "TURN_LOOKS", 1)
    wanted = {"exp": "TAGS = 'yes'", "exp_type": "SQL92", "max_msg_nums": 1}
    assert (await rig.ask(**wanted, poll_time=400)).code == ResponseCode.POLLING_TIMEOUT
    assert looks == 2
    allow(100)
    assert await rig.bodies(**wanted, poll_time=4_000) == [b"hit"]


async def test_reading_what_is_outstanding_is_repeated_after_an_unexpected_failure(
    start: Starter, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reviver, "BEGIN_RETRY_S", 0.05)
    rig = await start()
    await rig.send(b"a", b"b")
    first, _ = await rig.pop(invisible_time=1_500)
    await rig.ack(first)
    learn, failures = reviver.Reviver._learn, 0

    def fail(self: reviver.Reviver, record: MessageExt) -> None:
        nonlocal failures
        learn(self, record)
        if failures < 3:
            failures += 1
            raise ZeroDivisionError("a bug")

    monkeypatch.setattr(reviver.Reviver, "_learn", fail)
    caplog.clear()
    await rig.restart()
    assert await rig.bodies(poll_time=10_000) == [b"b"]
    assert failures == 3
    assert len([each for each in caplog.records if each.exc_info is not None]) == 1


PRIORITIES = "+message.type=PRIORITY"


@pytest.mark.parametrize(("ascending", "first"), [(True, [3, 2, 1, 0]), (False, [0, 1, 2, 3])])
async def test_queues_of_a_priority_topic_are_popped_by_priority(
    start: Starter, ascending: bool, first: list[int]
) -> None:
    rig = await start(priority_order_asc=ascending)
    await rig.create("P", 4, PRIORITIES)
    for _ in range(3):
        for queue in (1, 3, 0, 2):
            await rig.send(b"m", topic="P", queue=queue)
    popped = [await rig.pop("P", max_msg_nums=3) for _ in range(4)]
    assert [[each.receipt.queue_id for each in batch] for batch in popped] == [[queue] * 3 for queue in first]


async def test_a_group_with_priority_factor_0_pops_without_priority(start: Starter) -> None:
    rig = await start()
    await rig.create("P", 4, PRIORITIES)
    group = SubscriptionGroupConfig(group_name="g", attributes={"+priority.factor": "0"})
    await rig.call(UpdateSubscriptionGroup(), encode(group))
    first = set()
    for _ in range(60):
        for queue in range(4):
            await rig.send(b"m", topic="P", queue=queue)
        popped = await rig.pop("P", max_msg_nums=1)
        first.add(popped[0].receipt.queue_id)
        await rig.pop("P")
    assert first == {0, 1, 2, 3}


@pytest.mark.parametrize(("share", "retry_first"), [(0, False), (100, True)])
async def test_retries_of_a_priority_topic_come_last_or_first(
    start: Starter, share: int, retry_first: bool
) -> None:
    rig = await start(pop_from_retry_probability_for_priority=share)
    await rig.create("P", 2, PRIORITIES)
    await rig.send(b"again", topic="P", queue=1)
    await rig.pop("P", invisible_time=300)
    waiting = await rig.call(
        Notification(consumer_group="g", topic="P", queue_id=-1, poll_time=10_000, born_time=0),
        timeout_ms=20_000,
    )
    assert isinstance(waiting.header, NotificationResponse) and waiting.header.has_msg
    await rig.send(b"new", topic="P", queue=0)
    popped = await rig.pop("P")
    assert [each.body for each in popped] == ([b"again", b"new"] if retry_first else [b"new", b"again"])


async def test_retries_stay_in_their_queues_and_their_topic_grows_with_the_other(start: Starter) -> None:
    rig = await start(use_separate_retry_queue=True)
    await rig.create("S", 2)
    await rig.send(b"one", topic="S", queue=1)
    await rig.pop("S", invisible_time=300)
    (again,) = await rig.pop("S", poll_time=10_000, invisible_time=300)
    assert (again.body, again.receipt.retry, again.receipt.queue_id) == (b"one", "1", 1)
    await rig.create("S", 4)
    await rig.send(b"three", topic="S", queue=3)
    await rig.pop("S", invisible_time=300)
    found: dict[bytes, int] = {}
    while len(found) < 2:
        for each in await rig.pop("S", poll_time=10_000):
            assert each.receipt.retry == "1"
            found[each.body] = each.receipt.queue_id
            await rig.ack(each, topic="S")
    assert found == {b"one": 1, b"three": 3}


async def test_an_ordered_group_gets_one_batch_at_a_time(start: Starter) -> None:
    rig = await start()
    await rig.send(b"a", b"b", b"c")
    first = await rig.pop(order=True, max_msg_nums=2, attempt_id="x", invisible_time=60_000)
    assert [each.body for each in first] == [b"a", b"b"]
    assert first[0].receipt.revive_queue == 999
    assert await rig.bodies(order=True, attempt_id="y") == []
    again = await rig.pop(order=True, max_msg_nums=2, attempt_id="x")
    assert [each.body for each in again] == [b"a", b"b"]
    waiting = asyncio.ensure_future(rig.pop(order=True, attempt_id="y", poll_time=5_000))
    await asyncio.sleep(0.05)
    await rig.ack(*again)
    assert [each.body for each in await waiting] == [b"c"]


async def test_a_notification_comes_when_an_ordered_batch_is_due(start: Starter) -> None:
    rig = await start()
    await rig.send(b"a")
    assert await rig.bodies(order=True, invisible_time=500) == [b"a"]
    ask = Notification(consumer_group="g", topic="T", queue_id=-1, poll_time=4_000, born_time=0, order=True)
    answer = await rig.call(ask, timeout_ms=10_000)
    assert isinstance(answer.header, NotificationResponse)
    assert answer.header.has_msg


async def test_a_pop_waits_for_the_ordered_batch_that_is_due_first(start: Starter) -> None:
    rig = await start()
    await rig.create("O", 2)
    for queue, invisible_ms in ((0, 500), (1, 60_000)):
        await rig.send(b"%d" % queue, topic="O", queue=queue)
        assert await rig.bodies(topic="O", order=True, queue_id=queue, invisible_time=invisible_ms)
    waiting = [
        asyncio.ensure_future(rig.bodies(topic="O", order=True, queue_id=queue, poll_time=4_000))
        for queue in (0, 1)
    ]
    assert await asyncio.gather(*waiting) == [[b"0"], []]


async def test_an_ordered_batch_survives_a_restart(start: Starter) -> None:
    rig = await start()
    await rig.send(b"a", b"b", b"c")
    first = await rig.pop(order=True, max_msg_nums=2, attempt_id="x", invisible_time=2_000)
    await rig.ack(first[0])
    await rig.restart()
    assert await rig.bodies(order=True, attempt_id="y") == []
    answer = await rig.ask(order=True, attempt_id="y", poll_time=5_000)
    assert [each.body for each in decode_records(answer.body)] == [b"b", b"c"]
    assert isinstance(answer.header, PopMessageResponse)
    counts = parse_order_count_info(answer.header.order_count_info)
    assert counts == {("0", queue_offset_key(0, 1)): 1, ("0", "0"): 0}


async def test_a_reset_offset_holds_for_the_next_pop(start: Starter) -> None:
    rig = await start()
    await rig.send(b"a", b"b")
    assert len(await rig.pop()) == 2
    await rig.call(ResetOffset(topic="T", group="g", timestamp=0, is_force=True, queue_id=0, offset=1))
    assert await rig.bodies() == [b"b"]
    await rig.restart()
    assert await rig.bodies() == []


@pytest.mark.parametrize("order", [False, True])
async def test_a_reset_that_a_pop_has_used_holds_once_whatever_the_table_says(
    start: Starter, order: bool
) -> None:
    rig = await start()
    await rig.send(b"a", b"b", b"c")
    assert len(await rig.pop(order=order)) == 3
    await rig.call(ResetOffset(topic="T", group="g", timestamp=0, is_force=True, queue_id=0, offset=1))
    assert rig.broker is not None
    offsets = rig.broker.broker.tables.offsets
    pending = offsets.pending_reset("g", "T", 0)
    assert pending is not None and pending[0] == 1
    # The next master may have the log of what follows, and the tables as they are now.
    tables = {"resetOffset": offsets.encode_resets(), "consumerOffset": offsets.encode()}
    popped = await rig.pop(order=order)
    assert [each.body for each in popped] == [b"b", b"c"]
    await rig.ack(*popped)
    end = asyncio.get_running_loop().time() + 5
    while offsets.pending_reset("g", "T", 0) is not None:
        assert asyncio.get_running_loop().time() < end, "the reset is used, and its record is safe"
        await asyncio.sleep(0.02)
    await rig.stop()
    for name, data in tables.items():
        (rig.root / "config" / f"{name}.json").write_bytes(data)
    rig.client = RemotingClient()
    await rig.start()
    assert await rig.bodies(order=order) == []
    assert rig.broker.broker.tables.offsets.pending_reset("g", "T", 0) is None


async def test_a_reset_whose_record_is_not_in_the_log_is_used_again(start: Starter) -> None:
    rig = await start()
    await rig.send(b"a", b"b")
    assert len(await rig.pop()) == 2
    await rig.call(ResetOffset(topic="T", group="g", timestamp=0, is_force=True, queue_id=0, offset=1))
    positions, key = rig.part.positions, ("T", "g", 0)
    taken = positions.take_reset(key)
    assert taken is not None and taken[0] == 1
    assert positions.take_reset(key) is None
    positions.reset_refused(key, taken[1])
    assert positions.take_reset(key) == taken
    positions.clear()  # another term
    assert await rig.bodies() == [b"b"]


async def test_an_ordered_group_follows_a_reset(start: Starter) -> None:
    rig = await start()
    await rig.send(b"a", b"b")
    assert len(await rig.pop(order=True)) == 2
    await rig.call(ResetOffset(topic="T", group="g", timestamp=0, is_force=True, queue_id=0, offset=1))
    assert await rig.bodies(order=True) == [b"b"]


async def test_a_reset_holds_for_an_ordered_queue_whose_messages_are_acknowledged_just_then(
    start: Starter,
) -> None:
    """The ack and the pop that uses the reset come in one read. Another queue may fill that pop."""
    rig = await start()
    await rig.create(queues=2)
    await rig.send(b"a")
    await rig.send(b"b", b"c", queue=1)
    for group in [f"g{number}" for number in range(8)]:  # which queue a pop takes first is random
        (popped,) = await rig.pop(group=group, queue_id=1, order=True, max_msg_nums=1)
        await rig.call(ResetOffset(topic="T", group=group, timestamp=0, is_force=True))
        _, found = await asyncio.gather(
            rig.ack(popped, group=group), rig.bodies(group=group, order=True, max_msg_nums=1)
        )
        found += await rig.bodies(group=group, order=True)
        assert sorted(found)[:2] == [b"a", b"b"], group


async def test_a_recreated_topic_is_popped_from_its_beginning(start: Starter) -> None:
    rig = await start()
    await rig.send(*(b"old%d" % n for n in range(5)))
    assert len(await rig.pop(invisible_time=1_000)) == 5
    await rig.call(DeleteTopic(topic="T"))
    await rig.create()
    await rig.send(*(b"new%d" % n for n in range(9)))
    await rig.restart()
    assert await rig.bodies() == [b"new%d" % n for n in range(9)]
    await asyncio.sleep(1.2)
    assert await rig.bodies(poll_time=300) == []


async def test_a_recreated_topic_does_not_wait_for_an_ordered_batch_of_the_old_one(start: Starter) -> None:
    rig = await start()
    await rig.send(b"a", b"b")
    assert await rig.bodies(order=True, attempt_id="1") == [b"a", b"b"]
    await rig.call(DeleteTopic(topic="T"))
    await rig.create()
    await rig.send(b"c", b"d")
    await rig.restart()
    assert await rig.bodies(order=True, attempt_id="2", poll_time=500) == [b"c", b"d"]


@pytest.mark.parametrize("topic", ["T", "rmq_sys_REVIVE_LOG_DefaultCluster"])
async def test_a_body_that_does_not_inflate_does_not_end_all_pops(start: Starter, topic: str) -> None:
    rig = await start()
    await rig.send(b"a")
    await rig.call(v2(topic, sys_flag=MessageSysFlag.COMPRESSED, properties="TAGS\1ck\2"), b"not compressed")
    await rig.ask(invisible_time=2_000)
    await rig.restart()
    await rig.create("U")
    await rig.send(b"b", topic="U")
    assert await rig.bodies(topic="U") == [b"b"]
    assert (await rig.ask(poll_time=5_000)).code == ResponseCode.SUCCESS


async def test_peek_and_notification_show_what_a_pop_would_find(start: Starter) -> None:
    rig = await start()
    ask = Notification(consumer_group="g", topic="T", queue_id=-1, poll_time=5_000, born_time=0)
    waiting = asyncio.ensure_future(rig.call(ask, timeout_ms=10_000))
    await asyncio.sleep(0.05)
    await rig.send(b"a")
    answer = await waiting
    assert isinstance(answer.header, NotificationResponse)
    assert answer.header.has_msg
    peek = PeekMessage(topic="T", queue_id=0, max_msg_nums=10, consumer_group="g")
    for _ in range(2):
        assert [each.body for each in decode_records((await rig.call(peek)).body)] == [b"a"]
    assert await rig.bodies() == [b"a"]
    with pytest.raises(MQError) as nothing:
        await rig.call(peek)
    assert nothing.value.code == ResponseCode.PULL_NOT_FOUND


async def test_a_killed_broker_forgets_neither_what_is_outstanding_nor_what_is_acknowledged(
    tmp_path: Path,
) -> None:
    conf = write_conf(tmp_path / "b.conf", storePathRootDir=tmp_path / "store")

    def begin() -> tuple[subprocess.Popen[str], str]:
        process = subprocess.Popen(
            program(conf), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert process.stdout is not None
        with process.stdout:
            line = process.stdout.readline()
        return process, line.partition(", ")[2].partition("]")[0]

    rig = Rig(tmp_path, {})
    process, rig.address = await asyncio.to_thread(begin)
    try:
        await rig.create()
        await rig.send(*(b"%d" % n for n in range(20)))
        popped = await rig.pop(invisible_time=4_000, max_msg_nums=12)
        await rig.ack(*popped[:5])
        ordered = await rig.pop(group="o", order=True, max_msg_nums=2, invisible_time=60_000)
        await rig.ack(ordered[0], group="o")
        process.kill()
        process.wait()
        await rig.client.close()
        rig.client = RemotingClient()
        process, rig.address = await asyncio.to_thread(begin)
        rest = await rig.pop()
        assert [each.body for each in rest] == [b"%d" % n for n in range(12, 20)]
        assert await rig.bodies(group="o", order=True) == []
        await rig.ack(ordered[1], group="o")
        assert (await rig.bodies(group="o", order=True))[0] == b"2"
        back: list[bytes] = []
        while len(back) < 7:
            again = await rig.pop(poll_time=8_000)
            assert again
            back += [each.body for each in again]
            await rig.ack(*again)
        assert sorted(back, key=int) == [b"%d" % n for n in range(5, 12)]
    finally:
        await rig.client.close()
        process.kill()
        process.wait()
