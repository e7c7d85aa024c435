"""Light queues on a whole broker over real sockets: pulls, offsets, delays, transactions, restarts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.integration.transactions import COMMIT, ROLLBACK, RawProducer

from batonmq.broker.config import BrokerConfig
from batonmq.broker.service import BrokerService
from batonmq.ha.config import HAConfig
from batonmq.net import RemotingClient
from batonmq.protocol.bodies.clients import (
    ConsumerData,
    ConsumeType,
    HeartbeatData,
    MessageModel,
    MessageRequestMode,
    QueryAssignmentRequestBody,
    QueryAssignmentResponseBody,
    SetMessageRequestModeRequestBody,
    SubscriptionData,
)
from batonmq.protocol.bodies.statistics import ConsumeStats, TopicStatsTable
from batonmq.protocol.codes import PullSysFlag, ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.admin import CleanUnusedTopic, GetConsumeStats, GetTopicStatsInfo
from batonmq.protocol.headers.broker.clients import Heartbeat, QueryAssignment, SetMessageRequestMode
from batonmq.protocol.headers.broker.pop import AckMessage, PopMessage, PopMessageResponse
from batonmq.protocol.headers.broker.pull import (
    GetMaxOffset,
    GetMinOffset,
    PullMessage,
    QueryConsumerOffset,
    SearchOffset,
    UpdateConsumerOffset,
)
from batonmq.protocol.headers.broker.send import SendBatchMessage, SendMessageResponse, SendMessageV2
from batonmq.protocol.json import decode, encode
from batonmq.protocol.message.batch import BatchItem, encode_batch
from batonmq.protocol.message.properties import encode_properties
from batonmq.protocol.message.record import MessageExt, decode_records
from batonmq.protocol.pop import Receipt, parse_msg_offset_info
from batonmq.store.config import StoreConfig

A, B = "%LMQ%a", "%LMQ%b"
PULLED = (0, ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED)
POPPED = (0, ResponseCode.POLLING_TIMEOUT, ResponseCode.POLLING_FULL)
HOLD = PullSysFlag.SUBSCRIPTION | PullSysFlag.SUSPEND


@dataclass
class Rig:
    """One broker, and a client that speaks the protocol itself."""

    service: BrokerService
    client: RemotingClient

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.service.port}"

    async def call(self, header: Any, body: bytes = b"", **options: Any) -> Any:
        return await self.client.call(self.address, header, body, **{"timeout_ms": 15_000, **options})

    async def send(
        self, body: bytes, *names: str, topic: str = "Parent", queue: int = 0, **properties: str
    ) -> SendMessageResponse:
        if names:
            properties["INNER_MULTI_DISPATCH"] = ",".join(names)
        answer = await self.call(header_of(topic, queue, encode_properties(properties).decode()), body)
        assert isinstance(answer.header, SendMessageResponse)
        return answer.header

    async def pull(self, topic: str, offset: int = 0, **fields: Any) -> Any:
        values: dict[str, Any] = {
            "consumer_group": "g",
            "topic": topic,
            "queue_id": 0,
            "queue_offset": offset,
            "max_msg_nums": 32,
            "sys_flag": PullSysFlag.SUBSCRIPTION,
            "commit_offset": 0,
            "suspend_timeout_millis": 10_000,
            "sub_version": 0,
            "subscription": "*",
        }
        return await self.call(PullMessage(**{**values, **fields}), accept=PULLED)

    async def messages(self, topic: str, offset: int = 0, **fields: Any) -> list[MessageExt]:
        return decode_records((await self.pull(topic, offset, **fields)).body)

    async def bodies(self, topic: str, offset: int = 0, **fields: Any) -> list[bytes]:
        return [message.body for message in await self.messages(topic, offset, **fields)]


def header_of(topic: str, queue: int, properties: str = "", **fields: Any) -> SendMessageV2:
    return SendMessageV2(
        producer_group="p",
        topic=topic,
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=queue,
        sys_flag=0,
        born_timestamp=1_700_000_000_000,
        flag=0,
        properties=properties,
        **fields,
    )


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Any]:
    running: list[Rig] = []

    async def starter(*, on: bool = True, quota: int | None = None, **keys: Any) -> Rig:
        values = {
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
            enable_lmq=on,
            enable_multi_dispatch=on,
            enable_lmq_quota=quota is not None,
            max_lmq_consume_queue_num=quota or 0,
        )
        service = BrokerService(BrokerConfig(**{**values, **keys}), store, HAConfig())
        await service.start()
        rig = Rig(service, RemotingClient())
        running.append(rig)
        return rig

    yield starter
    for rig in running:
        await rig.client.close()
        if not rig.service.broker.role.stopping:
            await rig.service.stop()


async def test_a_message_is_pulled_from_each_light_queue_that_it_names(start: Any) -> None:
    rig = await start()
    for number in range(6):
        await rig.send(
            b"%d" % number, *([A, B] if number % 2 else [A]), queue=number % 4, TAGS=f"t{number % 2}"
        )
    assert await rig.bodies(A) == [b"0", b"1", b"2", b"3", b"4", b"5"]
    assert await rig.bodies(B, 1) == [b"3", b"5"]
    assert await rig.bodies(A, subscription="t1") == [b"1", b"3", b"5"]
    (message, *_) = await rig.messages(B, 2)
    # The record is the one of its topic; its place in the light queues is a property.
    assert (message.topic, message.queue_id, message.queue_offset) == ("Parent", 1, 1)
    assert message.properties["INNER_MULTI_QUEUE_OFFSET"] == "5,2"
    answer = await rig.pull(B, 3)
    assert (answer.code, answer.header.max_offset) == (ResponseCode.PULL_NOT_FOUND, 3)


async def test_a_pull_that_waits_at_a_light_queue_gets_the_next_message(start: Any) -> None:
    rig = await start()
    await rig.send(b"0", A)
    waiting = asyncio.ensure_future(rig.bodies(A, 1, sys_flag=HOLD))
    await asyncio.sleep(0.1)
    await rig.send(b"other", B)
    await asyncio.sleep(0.1)
    assert not waiting.done()
    await rig.send(b"1", A, queue=2)
    assert await waiting == [b"1"]


async def test_offsets_of_a_light_queue_are_asked_for_and_committed(start: Any) -> None:
    rig = await start()
    stored = [(await rig.send(b"%d" % number, A), await asyncio.sleep(0.01))[0] for number in range(5)]
    assert [answer.queue_offset for answer in stored] == [0, 1, 2, 3, 4]
    assert (await rig.call(GetMaxOffset(topic=A, queue_id=0))).header.offset == 5
    assert (await rig.call(GetMinOffset(topic=A, queue_id=0))).header.offset == 0
    third = (await rig.messages(A, 2))[0].store_timestamp
    assert (await rig.call(SearchOffset(topic=A, queue_id=0, timestamp=third))).header.offset == 2
    for group in ("g", "%LMQ%g"):
        await rig.bodies(A, consumer_group=group)
        asked = QueryConsumerOffset(consumer_group=group, topic=A, queue_id=0)
        await rig.call(
            UpdateConsumerOffset(consumer_group=group, topic=A, queue_id=0, commit_offset=len(group))
        )
        assert (await rig.call(asked)).header.offset == len(group)
    tables = rig.service.broker.tables
    assert A not in tables.topics.table and "%LMQ%g" not in tables.subscriptions.table
    await rig.service.stop()
    again = await start()
    for group in ("g", "%LMQ%g"):
        asked = QueryConsumerOffset(consumer_group=group, topic=A, queue_id=0)
        assert (await again.call(asked)).header.offset == len(group)
    assert await again.bodies(A) == [b"0", b"1", b"2", b"3", b"4"]
    await again.send(b"5", A)
    assert await again.bodies(A, 5) == [b"5"]


async def test_offsets_outlive_a_change_of_the_keys(start: Any) -> None:
    """Their file has another name then. RocketMQ begins with no offsets."""

    async def committed(rig: Rig) -> int:
        asked = QueryConsumerOffset(consumer_group="g", topic="Parent", queue_id=0)
        return int((await rig.call(asked)).header.offset)

    for number in range(1, 5):
        rig = await start(on=number % 2 == 0)
        await rig.send(b"%d" % number)
        await rig.bodies("Parent")
        if number > 1:
            assert await committed(rig) == number - 1
        await rig.call(
            UpdateConsumerOffset(consumer_group="g", topic="Parent", queue_id=0, commit_offset=number)
        )
        await rig.service.stop()
    files = {path.name for path in (rig.service.broker.store.config.root / "config").iterdir()}
    assert {"consumerOffset.json", "lmqConsumerOffset.json"} <= files


async def test_a_light_queue_without_messages_is_an_empty_queue(start: Any) -> None:
    rig = await start()
    assert (await rig.call(GetMaxOffset(topic=A, queue_id=0))).header.offset == 0
    assert (await rig.pull(A)).code == ResponseCode.PULL_NOT_FOUND
    with pytest.raises(MQError, match="queueId") as refused:
        await rig.pull(A, queue_id=1)
    assert refused.value.code == ResponseCode.INVALID_PARAMETER


async def test_without_the_keys_a_light_queue_is_an_unknown_topic(start: Any) -> None:
    rig = await start(on=False)
    await rig.send(b"0", A)
    (message,) = await rig.messages("Parent")
    assert message.properties["INNER_MULTI_DISPATCH"] == A
    assert "INNER_MULTI_QUEUE_OFFSET" not in message.properties
    with pytest.raises(MQError) as refused:
        await rig.pull(A)
    assert refused.value.code == ResponseCode.TOPIC_NOT_EXIST


async def test_a_delayed_message_enters_its_light_queues_when_it_is_due(start: Any) -> None:
    rig = await start(message_delay_level="1s 2s")
    await rig.send(b"late", A, DELAY="1")
    await rig.send(b"first", A)
    assert await rig.bodies(A) == [b"first"]
    (message,) = await rig.messages(A, 1, sys_flag=HOLD)
    assert message.body == b"late" and message.properties["INNER_MULTI_QUEUE_OFFSET"] == "1"


async def test_a_transaction_enters_its_light_queues_when_it_is_committed(start: Any) -> None:
    rig = await start()
    producer = RawProducer(rig.client, rig.address)
    await producer.connect()
    kept = await producer.prepare("kept", INNER_MULTI_DISPATCH=A)
    dropped = await producer.prepare("dropped", INNER_MULTI_DISPATCH=A)
    await rig.send(b"plain", A)
    await producer.end(dropped, ROLLBACK)
    assert await rig.bodies(A) == [b"plain"]
    await producer.end(kept, COMMIT)
    assert await rig.bodies(A, 1, sys_flag=HOLD) == [b"kept"]
    assert (await rig.call(GetMaxOffset(topic=A, queue_id=0))).header.offset == 2


async def test_a_timed_message_enters_its_light_queues_when_it_is_due(start: Any) -> None:
    rig = await start(timer_wheel_enable=True)
    await rig.send(b"late", A, TIMER_DELAY_MS="1200")
    await rig.send(b"first", A)
    assert await rig.bodies(A) == [b"first"]
    assert await rig.bodies(A, 1, sys_flag=HOLD) == [b"late"]


async def test_messages_of_a_batch_enter_their_light_queues(start: Any) -> None:
    rig = await start()
    fields = {name: getattr(header_of("Parent", 0), name) for name in SendMessageV2.__struct_fields__}
    header = SendBatchMessage(**fields)
    header.batch = True
    items = [
        BatchItem(body=b"%d" % number, properties=encode_properties({"INNER_MULTI_DISPATCH": name}))
        for number, name in enumerate([A, B, A])
    ]
    await rig.call(header, encode_batch(items))
    assert (await rig.bodies(A), await rig.bodies(B)) == ([b"0", b"2"], [b"1"])


@pytest.mark.parametrize(
    ("names", "why"),
    [
        ("plain", "'plain', which does not begin with %LMQ%"),
        (f"{A},,{B}", "'', which does not begin with %LMQ%"),
        ("%LMQ%a/b", "an illegal character"),
        ("%LMQ%" + "x" * 251, "more than 255 bytes"),
    ],
)
@pytest.mark.parametrize("kind", [{}, {"DELAY": "1"}])
async def test_a_name_that_is_not_a_light_queue_is_refused_with_the_reason(
    start: Any, names: str, why: str, kind: dict[str, str]
) -> None:
    rig = await start()
    with pytest.raises(MQError, match=why) as refused:
        await rig.send(b"x", names, **kind)
    assert refused.value.code == ResponseCode.MESSAGE_ILLEGAL
    assert rig.service.broker.store.max_offset == 0


@pytest.mark.parametrize("kind", [{}, {"DELAY": "1"}])
async def test_the_quota_refuses_messages_for_more_light_queues(start: Any, kind: dict[str, str]) -> None:
    rig = await start(quota=1)
    await rig.send(b"0", A)
    with pytest.raises(MQError, match="LMQ_CONSUME_QUEUE_NUM_EXCEEDED") as refused:
        await rig.send(b"1", A, B, **kind)
    assert refused.value.code == ResponseCode.LMQ_QUOTA_EXCEEDED
    await rig.send(b"2", A)
    assert await rig.bodies(A) == [b"0", b"2"]


async def test_offsets_that_a_client_made_up_are_dropped(start: Any) -> None:
    rig = await start()
    await rig.send(b"0", INNER_MULTI_QUEUE_OFFSET="7")
    await rig.send(b"1", A, INNER_MULTI_QUEUE_OFFSET="7")
    plain, named = await rig.messages("Parent")
    assert "INNER_MULTI_QUEUE_OFFSET" not in plain.properties
    assert named.properties["INNER_MULTI_QUEUE_OFFSET"] == "0"
    assert await rig.bodies(A) == [b"1"]


async def test_a_light_queue_is_popped_acknowledged_and_brought_back(start: Any) -> None:
    rig = await start()
    for number in range(7):
        names = [A, B] if number % 2 else [B]
        await rig.send(b"%d" % number, *names, queue=number % 3, TAGS="t" if number in (1, 5) else "u")

    async def pop(**fields: Any) -> tuple[PopMessageResponse, list[MessageExt]]:
        values: dict[str, Any] = {
            "consumer_group": "g",
            "topic": B,
            "queue_id": -1,
            "max_msg_nums": 32,
            "invisible_time": 1_000,
            "poll_time": 0,
            "born_time": 0,
            "init_mode": 0,
            "exp": "t",
        }
        answer = await rig.call(PopMessage(**{**values, **fields}), accept=POPPED)
        return answer.header, decode_records(answer.body)

    header, messages = await pop()
    assert [message.body for message in messages] == [b"1", b"5"]
    # The offsets are those in the light queue, by which RocketMQ's client finds each message's.
    assert parse_msg_offset_info(header.msg_offset_info) == {("0", 0): [1, 5]}
    receipt = Receipt(0, header.pop_time, header.invisible_time, header.revive_qid, "0", "b", 0, 1)
    await rig.call(
        AckMessage(consumer_group="g", topic=B, queue_id=0, extra_info=str(receipt), offset=receipt.offset)
    )
    header, messages = await pop(poll_time=10_000)
    assert [message.body for message in messages] == [b"5"]
    assert (messages[0].topic, messages[0].reconsume_times) == (B, 1)


async def test_a_group_gets_its_light_queue_from_the_broker(start: Any) -> None:
    rig = await start()
    data = ConsumerData(
        group_name="g",
        consume_type=ConsumeType.POP,
        message_model=MessageModel.CLUSTERING,
        subscription_data_set=[SubscriptionData(topic=A)],
    )
    await rig.call(Heartbeat(), encode(HeartbeatData(client_id="c", consumer_data_set=[data])))
    mode = SetMessageRequestModeRequestBody(A, "g", MessageRequestMode.POP, 8)
    await rig.call(SetMessageRequestMode(), encode(mode))
    body = QueryAssignmentRequestBody(A, "g", "c", "AVG", MessageModel.CLUSTERING)
    answer = await rig.call(QueryAssignment(), encode(body))
    assignments = decode(answer.body, QueryAssignmentResponseBody).message_queue_assignments
    assert assignments is not None
    assert {each.mode for each in assignments} == {MessageRequestMode.POP}
    assert {(each.message_queue.topic, each.message_queue.broker_name) for each in assignments} == {(A, "b")}


async def test_progress_of_a_group_shows_light_queues(start: Any) -> None:
    rig = await start()
    for number in range(3):
        await rig.send(b"%d" % number, A)
    for group in ("g", "%LMQ%g"):
        await rig.bodies(A, consumer_group=group)
        await rig.call(UpdateConsumerOffset(consumer_group=group, topic=A, queue_id=0, commit_offset=2))
        answer = await rig.call(GetConsumeStats(consumer_group=group))
        ((queue, at),) = decode(answer.body, ConsumeStats).offset_table.items()
        assert (queue.topic, at.consumer_offset, at.broker_offset) == (A, 2, 3)
    answer = await rig.call(GetTopicStatsInfo(topic=A))
    ((queue, found),) = decode(answer.body, TopicStatsTable).offset_table.items()
    assert (queue.queue_id, found.min_offset, found.max_offset) == (0, 0, 3)


async def test_unused_topics_are_cleaned_without_light_queues(start: Any) -> None:
    rig = await start()
    await rig.send(b"0", A)
    await rig.call(CleanUnusedTopic())
    assert await rig.bodies(A) == [b"0"]
    await rig.service.stop()
    # Also where they are switched off for a while.
    off = await start(on=False)
    await off.call(CleanUnusedTopic())
    assert A not in off.service.broker.tables.topics
    await off.service.stop()
    again = await start()
    assert await again.bodies(A) == [b"0"]
