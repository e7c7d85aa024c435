"""A whole broker over real sockets: what it accepts, what it refuses and with which code, what survives."""

import asyncio
import errno
import gc
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest
from tests.unit.broker.fakes import become_slave

from batonmq.broker import service as broker_service
from batonmq.broker.config import BrokerConfig
from batonmq.broker.delay.part import DelayPart
from batonmq.broker.messages.part import MessagesPart
from batonmq.broker.replica.part import ReplicaPart
from batonmq.broker.service import BrokerService
from batonmq.broker.tables.files import TableFile
from batonmq.broker.upkeep import pace
from batonmq.broker.upkeep.part import UpkeepPart
from batonmq.demo.ports import free_ports
from batonmq.ha.autoswitch.sync_state import SyncStateSet
from batonmq.ha.config import HAConfig
from batonmq.namesrv.config import NamesrvConfig
from batonmq.namesrv.service import NamesrvService
from batonmq.net import Dispatcher, RemotingClient, RemotingServer, Reply, Request, Response
from batonmq.net.errors import NetError
from batonmq.protocol.bodies.clients import (
    ConsumerData,
    ConsumeType,
    HeartbeatData,
    MessageModel,
    SubscriptionData,
)
from batonmq.protocol.bodies.routes import TopicRouteData
from batonmq.protocol.bodies.statistics import SNDBCK_PUT_NUMS
from batonmq.protocol.codes import PullSysFlag, RequestCode, ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.frame import Command
from batonmq.protocol.headers.broker.admin import UpdateBrokerConfig
from batonmq.protocol.headers.broker.clients import Heartbeat
from batonmq.protocol.headers.broker.pull import PullMessage, PullMessageResponse, QueryMessage
from batonmq.protocol.headers.broker.replication import WatchTables, WatchTablesResponse
from batonmq.protocol.headers.broker.send import (
    ConsumerSendMsgBack,
    EndTransaction,
    SendBatchMessage,
    SendMessage,
    SendMessageResponse,
    SendMessageV2,
)
from batonmq.protocol.headers.namesrv import GetRouteInfo
from batonmq.protocol.json import decode, encode
from batonmq.protocol.message.batch import BatchItem, encode_batch
from batonmq.protocol.message.ids import decode_message_id
from batonmq.protocol.message.record import MessageExt, decode_records
from batonmq.store import commitlog, indexer, queues
from batonmq.store.config import FlushDiskType, StoreConfig
from batonmq.store.mapped import MappedFile

ALL = PullSysFlag.SUBSCRIPTION
PULLED = (0, ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED)
STORED = (0, ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.FLUSH_SLAVE_TIMEOUT)
HOLD = PullSysFlag.SUBSCRIPTION | PullSysFlag.SUSPEND


@dataclass
class Rig:
    """One broker and a client that talks to it."""

    broker: BrokerService
    client: RemotingClient

    async def call(self, header: Any, body: bytes = b"", **options: Any) -> Response:
        return await self.client.call(f"127.0.0.1:{self.broker.port}", header, body, **options)

    async def send(
        self, body: bytes = b"x", topic: str = "T", queue: int = 0, **fields: Any
    ) -> SendMessageResponse:
        answer = await self.call(v2(topic, queue, **fields), body)
        assert isinstance(answer.header, SendMessageResponse)
        return answer.header

    async def pull(self, offset: int, topic: str = "T", queue: int = 0, **fields: Any) -> Response:
        values: dict[str, Any] = {
            "consumer_group": "g",
            "topic": topic,
            "queue_id": queue,
            "queue_offset": offset,
            "max_msg_nums": 32,
            "sys_flag": ALL,
            "commit_offset": 0,
            "suspend_timeout_millis": 10_000,
            "sub_version": 0,
            "subscription": "*",
        }
        answer = await self.call(PullMessage(**{**values, **fields}), accept=PULLED, timeout_ms=15_000)
        return answer

    async def messages(self, offset: int = 0, **fields: Any) -> list[MessageExt]:
        return decode_records((await self.pull(offset, **fields)).body)


def v2(topic: str = "T", queue: int = 0, **fields: Any) -> SendMessageV2:
    values: dict[str, Any] = {
        "producer_group": "p",
        "topic": topic,
        "default_topic": "TBW102",
        "default_topic_queue_nums": 4,
        "queue_id": queue,
        "sys_flag": 0,
        "born_timestamp": 1_700_000_000_000,
        "flag": 0,
    }
    return SendMessageV2(**{**values, **fields})


def configs(root: Path, **keys: Any) -> tuple[BrokerConfig, StoreConfig, HAConfig]:
    flush = keys.pop("flush_disk_type", FlushDiskType.ASYNC_FLUSH)
    file_size = keys.pop("mapped_file_size_commit_log", 16 << 20)
    broker = {"broker_name": "b", "broker_ip1": "127.0.0.1", "bind_address": "127.0.0.1", "listen_port": 0}
    store = StoreConfig(
        store_path_root_dir=str(root),
        mapped_file_size_commit_log=file_size,
        max_hash_slot_num=1000,
        max_index_num=5000,
        flush_disk_type=flush,
    )
    return BrokerConfig(**{**broker, **keys}), store, HAConfig()


Starter = Callable[..., Awaitable[Rig]]


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Starter]:
    running: list[Rig] = []

    async def starter(**keys: Any) -> Rig:
        service = BrokerService(*configs(tmp_path / "store", **keys))
        await service.start()
        rig = Rig(service, RemotingClient())
        running.append(rig)
        return rig

    yield starter
    for rig in running:
        await rig.client.close()
        if not rig.broker.broker.role.stopping:
            await rig.broker.stop()


@pytest.fixture
def disk_of_tables(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Tables are not written until it is set."""
    disk, write = threading.Event(), TableFile.write
    disk.set()
    monkeypatch.setattr(TableFile, "write", lambda self, data: (disk.wait(10), write(self, data))[1])
    yield disk
    disk.set()


# -- what it stores


async def test_a_message_comes_back_as_it_was_sent(start: Starter) -> None:
    rig = await start()
    answer = await rig.send(b"hello", properties="KEYS\x01k\x02TAGS\x01a\x02UNIQ_KEY\x01ABC\x02", flag=7)
    assert (answer.queue_id, answer.queue_offset, answer.transaction_id) == (0, 0, "ABC")
    (message,) = await rig.messages()
    assert (message.body, message.flag, message.tags, message.keys) == (b"hello", 7, "a", ["k"])
    assert message.offset_message_id == answer.msg_id
    assert message.properties["CLUSTER"] == "DefaultCluster"
    assert message.born_timestamp == 1_700_000_000_000


async def test_sends_to_a_topic_that_one_of_them_makes_are_answered_when_slaves_and_disk_have_it(
    start: Starter, disk_of_tables: threading.Event
) -> None:
    rig = await start()
    await rig.send(topic="Old")
    known = (await rig.call(WatchTables(copied=-1))).header
    assert isinstance(known, WatchTablesResponse)
    slave = asyncio.ensure_future(rig.call(WatchTables(copied=known.changes)))
    await asyncio.sleep(0.05)
    disk_of_tables.clear()
    answered: list[int] = []

    async def send(number: int) -> None:
        header = await rig.send(b"%d" % number, "New", number % 2)
        answered.append(header.queue_offset * 2 + number % 2)

    sends = [asyncio.ensure_future(send(number)) for number in range(6)]
    watched = (await slave).header
    assert isinstance(watched, WatchTablesResponse)
    assert len(await rig.messages(topic="New")) == 3
    await rig.send(topic="Old")
    slave = asyncio.ensure_future(rig.call(WatchTables(copied=watched.changes)))
    await asyncio.sleep(0.2)
    assert not answered
    disk_of_tables.set()
    await asyncio.gather(*sends)
    assert answered == list(range(6))
    await rig.send(topic="New")
    slave.cancel()


async def test_the_disk_of_the_tables_fails_and_sends_to_a_new_topic_are_answered(
    start: Starter, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(self: TableFile, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    rig = await start()
    monkeypatch.setattr(TableFile, "write", fail)
    await rig.send(topic="New")
    assert "topic New: in force until a restart: No space left on device" in caplog.text
    assert len(await rig.messages(topic="New")) == 1


async def test_a_topic_whose_first_send_is_refused_is_waited_for_by_the_next(start: Starter) -> None:
    rig = await start()
    with pytest.raises(MQError, match="queueId"):
        await rig.send(topic="New", queue=99)
    await rig.send(topic="New")
    await rig.send(topic="New")
    assert len(await rig.messages(topic="New")) == 2


async def test_long_names_and_both_header_forms_are_understood(start: Starter) -> None:
    rig = await start()
    fields = {name: getattr(v2(), name) for name in v2().__struct_fields__ if name != "broker_name"}
    await rig.call(SendMessage(**fields), b"v1")
    address = f"127.0.0.1:{rig.broker.port}"
    ext = v2(properties="UNIQ_KEY\x01K\x02").to_ext()
    command = Command(RequestCode.SEND_MESSAGE_V2, ext, b"binary", binary=True)
    answer = await rig.client.invoke(address, command, timeout_ms=3000)
    assert answer.binary and answer.code == 0
    assert answer.ext["queueOffset"] == "1" and answer.ext["transactionId"] == "K"
    assert [message.body for message in await rig.messages()] == [b"v1", b"binary"]


async def test_a_batch_is_stored_as_single_messages_with_one_id_each(start: Starter) -> None:
    rig = await start()
    header = SendBatchMessage(**{name: getattr(v2(), name) for name in v2().__struct_fields__})
    header.batch = True
    body = encode_batch([BatchItem(body=b"%d" % n, properties=b"TAGS\x01t\x02") for n in range(5)])
    answer = (await rig.call(header, body)).header
    assert isinstance(answer, SendMessageResponse)
    stored = await rig.messages()
    assert [message.body for message in stored] == [b"0", b"1", b"2", b"3", b"4"]
    assert [message.offset_message_id for message in stored] == answer.msg_id.split(",")


async def test_restart_keeps_messages_topics_and_offsets(start: Starter) -> None:
    rig = await start()
    for number in range(10):
        await rig.send(b"%d" % number)
    await rig.pull(0, sys_flag=ALL | PullSysFlag.COMMIT_OFFSET, commit_offset=6)
    await rig.broker.stop()
    again = await start()
    assert [message.body for message in await again.messages()] == [b"%d" % n for n in range(10)]
    assert again.broker.broker.tables.offsets.query("g", "T", 0) == 6
    assert (await again.send()).queue_offset == 10


async def test_sync_flush_acknowledges_what_is_on_disk(start: Starter) -> None:
    rig = await start(flush_disk_type=FlushDiskType.SYNC_FLUSH)
    await asyncio.gather(*(rig.send(b"%d" % n) for n in range(50)))
    store = rig.broker.broker.store
    assert store.flushed_offset == store.max_offset > 0


async def test_a_delayed_message_arrives_late_and_once(start: Starter) -> None:
    rig = await start(message_delay_level="1s 2s")
    await rig.send(b"first")
    began = time.monotonic()
    await rig.send(b"late", properties="DELAY\x011\x02")
    (message,) = await rig.messages(1, sys_flag=HOLD)
    assert message.body == b"late" and time.monotonic() - began >= 0.9
    assert "DELAY" not in message.properties
    assert rig.broker.part(DelayPart).schedule.offsets == {1: 1}
    assert len(await rig.messages(0)) == 2


@pytest.mark.parametrize(
    ("properties", "queue", "kept"),
    [
        ("_SYS_MSG_PRIORITY_\x010\x02", 0, True),
        ("_SYS_MSG_PRIORITY_\x012\x02", 2, True),
        ("_SYS_MSG_PRIORITY_\x0199\x02", 3, True),
        ("_SYS_MSG_PRIORITY_\x01-1\x02", 1, True),
        ("_SYS_MSG_PRIORITY_\x01high\x02", 1, True),
        ("_SYS_MSG_PRIORITY_\x0199999999999\x02", 1, True),
        ("my_SYS_MSG_PRIORITY_\x012\x02", 1, False),
        ("_SYS_MSG_PRIORITY_\x012\x02__SHARDINGKEY\x01k\x02", 1, False),
    ],
)
async def test_a_message_with_a_priority_goes_to_the_queue_of_that_number(
    start: Starter, properties: str, queue: int, kept: bool
) -> None:
    """As with RocketMQ 5.5; the sender's own choice, queue 1, counts where there is no priority."""
    rig = await start()
    answer = await rig.send(b"m", queue=1, properties=properties)
    assert answer.queue_id == queue
    (message,) = await rig.messages(queue=queue)
    assert message.body == b"m" and ("_SYS_MSG_PRIORITY_" in message.properties) is kept


async def test_a_message_sent_back_returns_on_the_retry_topic_and_ends_as_dead_letter(start: Starter) -> None:
    rig = await start(message_delay_level="1s")
    await rig.send(b"poison", properties="TAGS\x01a\x02")
    (message,) = await rig.messages()
    back = ConsumerSendMsgBack(offset=message.physical_offset, group="g", delay_level=1)
    await rig.call(back)
    (retried,) = await rig.messages(0, topic="%RETRY%g", sys_flag=HOLD)
    assert retried.reconsume_times == 1 and retried.properties["RETRY_TOPIC"] == "T"
    back = ConsumerSendMsgBack(offset=retried.physical_offset, group="g", delay_level=-1)
    await rig.call(back)
    (dead,) = await rig.messages(0, topic="%DLQ%g")
    assert dead.body == b"poison" and dead.properties["ORIGIN_MESSAGE_ID"] == message.offset_message_id
    sent_back = rig.broker.broker.stats.find(SNDBCK_PUT_NUMS, "T@g")
    assert sent_back is not None and sent_back.total == 2


async def test_a_message_sent_back_with_the_greatest_count_keeps_it(start: Starter) -> None:
    """Senders choose the count. One more would not fit into a record, and the whole turn would fail."""
    rig = await start()
    most = (1 << 31) - 1
    await rig.send(b"poison", reconsume_times=most)
    (message,) = await rig.messages()
    assert message.reconsume_times == most
    back = ConsumerSendMsgBack(offset=message.physical_offset, group="g", delay_level=-1)
    await asyncio.gather(rig.send(b"1"), rig.call(back), rig.send(b"2"))
    (dead,) = await rig.messages(0, topic="%DLQ%g")
    assert dead.body == b"poison" and dead.reconsume_times == most
    assert [each.body for each in await rig.messages()] == [b"poison", b"1", b"2"]


async def test_messages_that_wait_are_delivered_although_messages_must_be_smaller_now(start: Starter) -> None:
    """They were acknowledged when `maxMessageSize` was greater."""
    rig = await start(message_delay_level="1s")
    body = bytes(5_000)
    await rig.send(body, topic="Level", properties="DELAY\x011\x02")
    await rig.send(body, topic="Timed", properties="TIMER_DELAY_MS\x011000\x02")
    half = await rig.send(
        body, topic="Half", sys_flag=4, properties="TRAN_MSG\x01true\x02PGROUP\x01p\x02UNIQ_KEY\x01K\x02"
    )
    await rig.send(body, topic="Back")
    (back,) = await rig.messages(topic="Back")
    await rig.call(UpdateBrokerConfig(), b"maxMessageSize=1000")
    with pytest.raises(MQError, match="msg body length limit 1000B"):
        await rig.send(body)
    await rig.call(ConsumerSendMsgBack(offset=back.physical_offset, group="g", delay_level=1))
    await rig.call(
        EndTransaction(
            producer_group="p",
            tran_state_table_offset=half.queue_offset,
            commit_log_offset=decode_message_id(half.msg_id)[2],
            commit_or_rollback=8,
            msg_id="K",
        )
    )
    for topic in ("Half", "Level", "Timed", "%RETRY%g"):
        (message,) = await rig.messages(0, topic=topic, sys_flag=HOLD)
        assert message.body == body, topic


async def test_messages_may_be_larger_as_soon_as_max_message_size_says_so(start: Starter) -> None:
    """On connections that are open already, too; their frames were limited to 16 MiB before."""
    rig = await start(mapped_file_size_commit_log=32 << 20)
    await rig.send()
    body = bytes(17 << 20)
    await rig.call(UpdateBrokerConfig(), b"maxMessageSize=18000000")
    await rig.call(v2("T", 0), body, timeout_ms=20_000)
    other = Rig(rig.broker, RemotingClient())
    await other.call(v2("T", 0), body, timeout_ms=20_000)
    await other.client.close()
    assert rig.broker.broker.store.queue_bounds("T", 0).max_offset == 3


async def test_sends_are_refused_until_the_time_to_open(start: Starter) -> None:
    opens_ms = int(time.time() * 1000) + 400
    rig = await start(start_accept_send_request_time_stamp=opens_ms)
    with pytest.raises(MQError, match="broker unable to service, until 20") as refused:
        await rig.send()
    assert refused.value.code == ResponseCode.SYSTEM_ERROR
    await asyncio.sleep(0.5)
    assert (await rig.send()).queue_offset == 0


async def test_pull_consumers_are_refused_where_only_push_consumers_are_wanted(start: Starter) -> None:
    rig = await start(reject_pull_consumer_enable=True)
    await rig.send()

    async def pulled(group: str) -> int:
        try:
            return (await rig.pull(0, consumer_group=group)).code
        except MQError as refused:
            return refused.code

    async def beat(group: str, kind: ConsumeType) -> None:
        consumer = ConsumerData(group_name=group, consume_type=kind)
        data = HeartbeatData(client_id="c", consumer_data_set=[consumer])
        await rig.call(Heartbeat(), encode(data))

    assert await pulled("pulls") == ResponseCode.SUBSCRIPTION_NOT_EXIST
    await beat("pulls", ConsumeType.ACTIVELY)
    assert await pulled("pulls") == ResponseCode.SUBSCRIPTION_NOT_EXIST
    await beat("pushes", ConsumeType.PASSIVELY)
    assert await pulled("pushes") == ResponseCode.SUCCESS
    assert await pulled("TOOLS_CONSUMER") == ResponseCode.SUCCESS


# -- what it refuses


@pytest.mark.parametrize(
    ("fields", "body", "code", "remark"),
    [
        ({"topic": "bad topic"}, b"x", ResponseCode.INVALID_PARAMETER, "illegal characters"),
        ({"topic": ""}, b"x", ResponseCode.INVALID_PARAMETER, "blank"),
        ({"topic": "t" * 128}, b"x", ResponseCode.INVALID_PARAMETER, "longer than topic max length"),
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, b"x", ResponseCode.NO_PERMISSION, "is forbidden"),
        ({"default_topic": "nothing"}, b"x", ResponseCode.TOPIC_NOT_EXIST, "apply first please"),
        ({"queue": 99}, b"x", ResponseCode.INVALID_PARAMETER, "request queueId[99] is illegal"),
        (
            {"topic": "new", "queue": -1, "default_topic_queue_nums": 0},
            b"x",
            ResponseCode.INVALID_PARAMETER,
            "request queueId[-1] is illegal",
        ),
        ({}, b"x" * (4 * 1024 * 1024 + 1), ResponseCode.MESSAGE_ILLEGAL, "msg body length limit 4194304B"),
        ({}, b"", ResponseCode.MESSAGE_ILLEGAL, "the message is illegal"),
        ({"properties": "K\x01" + "v" * 32_767 + "\x02"}, b"x", ResponseCode.MESSAGE_ILLEGAL, "illegal"),
        ({"sys_flag": 4}, b"x", ResponseCode.MESSAGE_ILLEGAL, "illegal"),
        ({"sys_flag": 12}, b"x", ResponseCode.MESSAGE_ILLEGAL, "illegal"),
        ({"properties": "DELAY\x01soon\x02"}, b"x", ResponseCode.MESSAGE_ILLEGAL, "DELAY=soon"),
        (
            {"properties": "TIMER_DELAY_SEC\x01soon\x02"},
            b"x",
            ResponseCode.MESSAGE_ILLEGAL,
            "timer message illegal",
        ),
        ({"properties": "INNER_NUM\x012\x02"}, b"x", ResponseCode.MESSAGE_ILLEGAL, "illegal"),
    ],
)
async def test_refused_sends(
    start: Starter, fields: dict[str, Any], body: bytes, code: int, remark: str
) -> None:
    rig = await start()
    with pytest.raises(MQError) as refused:
        await rig.send(body, **fields)
    assert refused.value.code == code
    assert remark in refused.value.remark
    assert rig.broker.broker.store.max_offset == 0
    assert (await rig.send(b"good")).queue_offset == 0


async def test_a_batch_that_is_none_and_a_number_that_is_none(start: Starter) -> None:
    rig = await start()
    with pytest.raises(MQError) as refused:
        await rig.send(b"garbage", batch=True)
    assert refused.value.code == ResponseCode.MESSAGE_ILLEGAL
    address = f"127.0.0.1:{rig.broker.port}"
    for binary in (False, True):
        ext = {**v2().to_ext(), "h": "9" * 12}
        command = Command(RequestCode.SEND_MESSAGE_V2, ext, b"x", binary=binary)
        answer = await rig.client.invoke(address, command, timeout_ms=3000)
        assert answer.code == ResponseCode.SYSTEM_ERROR and "<h>" in (answer.remark or "")
        del ext["h"]
        command = Command(RequestCode.SEND_MESSAGE_V2, ext, b"x", binary=binary)
        answer = await rig.client.invoke(address, command, timeout_ms=3000)
        assert answer.code == ResponseCode.SYSTEM_ERROR and "<h> is null" in (answer.remark or "")
    assert rig.broker.broker.store.max_offset == 0


async def test_an_unknown_code_is_answered_so(start: Starter) -> None:
    rig = await start()
    answer = await rig.client.invoke(f"127.0.0.1:{rig.broker.port}", Command(31_999), timeout_ms=3000)
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


async def test_a_slave_takes_no_messages_and_gives_none(start: Starter) -> None:
    rig = await start()
    await rig.send()
    become_slave(rig.broker.broker)
    with pytest.raises(MQError) as refused:
        await rig.send()
    assert refused.value.code == ResponseCode.SYSTEM_BUSY
    busy = "[REJECTREQUEST]system busy, start flow control for a while: "
    assert re.fullmatch(
        re.escape(busy) + "this broker is a slave.*, and takes no messages", refused.value.remark
    )
    with pytest.raises(MQError) as refused:
        await rig.pull(0)
    assert refused.value.code == ResponseCode.SYSTEM_BUSY


async def test_refusals_leave_nothing_in_memory(start: Starter) -> None:
    """Each kept its frames: one exception was raised for all of them."""
    rig = await start()
    await rig.send()
    become_slave(rig.broker.broker)

    async def frames_after(refusals: int) -> int:
        for _ in range(refusals):
            for ask in (rig.send, lambda: rig.pull(0)):
                with pytest.raises(MQError):
                    await ask()
        gc.collect()
        return sum(isinstance(each, TracebackType) for each in gc.get_objects())

    few = await frames_after(3)
    assert await frames_after(100) < few + 100


async def test_too_few_replicas_refuse_and_missing_acks_time_out(start: Starter) -> None:
    rig = await start(
        broker_role="SYNC_MASTER",
        enable_slave_acting_master=True,
        in_sync_replicas=2,
        min_in_sync_replicas=2,
        total_replicas=2,
        slave_timeout=200,
    )
    with pytest.raises(MQError) as refused:
        await rig.send()
    assert refused.value.code == ResponseCode.SYSTEM_ERROR
    assert refused.value.remark == "in-sync replicas not enough"
    await rig.broker.stop()
    late = await start(broker_role="SYNC_MASTER", in_sync_replicas=2, total_replicas=2, slave_timeout=200)
    answer = await late.call(v2(), b"x", accept=STORED)
    assert answer.code == ResponseCode.FLUSH_SLAVE_TIMEOUT
    assert isinstance(answer.header, SendMessageResponse) and answer.header.queue_offset == 0
    assert (await late.send(properties="WAIT\x01false\x02")).queue_offset == 1


async def test_a_backlog_of_unacknowledged_sends_is_bounded(start: Starter) -> None:
    rig = await start(
        broker_role="SYNC_MASTER",
        in_sync_replicas=2,
        total_replicas=2,
        slave_timeout=300,
        send_thread_pool_queue_capacity=10,
    )
    answers = await asyncio.gather(
        *(rig.call(v2(), b"x", accept=STORED) for _ in range(30)), return_exceptions=True
    )
    codes = [answer.code for answer in answers if isinstance(answer, Response | MQError)]
    assert codes.count(ResponseCode.FLUSH_SLAVE_TIMEOUT) == 10
    assert codes.count(ResponseCode.SYSTEM_BUSY) == 20


# -- pulls


@pytest.mark.parametrize("most", [0, -1, 2**31 - 1])
async def test_a_pull_of_any_number_of_messages_skips_none(start: Starter, most: int) -> None:
    rig = await start()
    for _ in range(3):
        await rig.send()
    answer = await rig.pull(0, max_msg_nums=most)
    assert answer.code == ResponseCode.SUCCESS
    assert isinstance(answer.header, PullMessageResponse)
    assert answer.header.next_begin_offset == (3 if most > 0 else 1)


async def test_pull_statuses(start: Starter) -> None:
    rig = await start()
    for _ in range(3):
        await rig.send()
    for offset, code, following in (
        (0, ResponseCode.SUCCESS, 3),
        (3, ResponseCode.PULL_NOT_FOUND, 3),
        (9, ResponseCode.PULL_OFFSET_MOVED, 3),
    ):
        answer = await rig.pull(offset)
        assert answer.code == code
        assert isinstance(answer.header, PullMessageResponse)
        assert answer.header.next_begin_offset == following
        assert (answer.header.min_offset, answer.header.max_offset) == (0, 3)
    assert (await rig.pull(0, queue=1)).code == ResponseCode.PULL_NOT_FOUND
    assert (await rig.pull(5, queue=1)).code == ResponseCode.PULL_OFFSET_MOVED


@pytest.mark.pure
async def test_nobody_waits_while_old_messages_are_read_from_disk(
    start: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = await start()
    for number in range(3):
        await rig.send(b"%d" % number)
    await rig.broker.stop()
    again = await start()
    fetch, reading, disk = MappedFile.fetch, threading.Event(), threading.Event()

    def slowly(file: MappedFile, position: int, size: int) -> None:
        reading.set()
        assert disk.wait(10)
        fetch(file, position, size)

    monkeypatch.setattr(MappedFile, "fetch", slowly)
    pull = asyncio.create_task(again.messages())
    await asyncio.to_thread(reading.wait, 10)
    assert (await again.send()).queue_offset == 3
    assert len(await again.messages(3)) == 1
    assert not pull.done()
    disk.set()
    assert [message.body for message in await pull][:3] == [b"0", b"1", b"2"]


@pytest.mark.pure
async def test_old_messages_that_the_disk_no_longer_gives_are_an_error_of_the_pull(
    start: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = await start()
    await rig.send()
    await rig.broker.stop()
    again = await start()

    def broken(file: MappedFile, position: int, size: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(MappedFile, "fetch", broken)
    with pytest.raises(MQError, match=r"the messages cannot be read: .*Input/output error") as refused:
        await again.pull(0)
    assert refused.value.code == ResponseCode.SYSTEM_ERROR
    assert (await again.send()).queue_offset == 1


async def test_an_index_far_behind_waits_for_a_disk_that_fails_and_goes_on_by_itself(
    start: Starter, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """To go on by the map would end the broker: a page that cannot be read is a SIGBUS. (Records are larger
    than what is read at once.)"""
    monkeypatch.setattr(indexer, "READ_BYTES", 8 * 1024)
    monkeypatch.setattr(pace, "INDEX_DELAY_S", 0.01)
    tried: list[int] = []
    by_map = 0
    read_records = indexer.read_records

    def watched(data: Any, begin: int, end: int) -> Iterator[Any]:
        nonlocal by_map
        for record in read_records(data, begin, end):
            by_map += not isinstance(data, bytes)
            yield record

    monkeypatch.setattr(indexer, "read_records", watched)

    def broken(path: Path, position: int, size: int) -> bytes:
        tried.append(position)
        raise OSError(errno.EIO, "Input/output error")

    def logged() -> list[str]:
        return [r.getMessage() for r in caplog.records if r.getMessage().startswith("the index waits")]

    async def found(key: str) -> list[MessageExt]:
        header = QueryMessage(topic="T", key=key, max_num=32, begin_timestamp=0, end_timestamp=1 << 50)
        return decode_records((await rig.call(header, accept=(0, ResponseCode.QUERY_NOT_FOUND))).body)

    async def send_until(done: Callable[[], bool], key: str) -> None:
        deadline = time.monotonic() + 10
        while not done():
            assert time.monotonic() < deadline
            await rig.send(b"x" * 20_000, properties=f"KEYS\x01{key}\x02")
            await asyncio.sleep(0.02)

    with monkeypatch.context() as patch:
        patch.setattr(commitlog, "read_path", broken)
        rig = await start()
        for _ in range(30):
            await rig.send(b"x" * 20_000, properties="KEYS\x01first\x02")
        await send_until(lambda: len(tried) > 5, "next")
    assert len(set(tried)) == 1, "not a step further"
    assert len(logged()) == 1 and "Input/output error" in logged()[0]
    deadline = time.monotonic() + 10
    while rig.broker.part(UpkeepPart).indexing:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)
    assert not by_map
    assert len(await found("first")) == 30


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"topic": "unknown"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"queue": 4}, ResponseCode.INVALID_PARAMETER),
        ({"queue": -1}, ResponseCode.INVALID_PARAMETER),
        ({"sys_flag": 0}, ResponseCode.SUBSCRIPTION_NOT_EXIST),
        ({"subscription": "||"}, ResponseCode.SUBSCRIPTION_PARSE_FAILED),
        ({"subscription": "a > 5", "expression_type": "SQL92"}, ResponseCode.SYSTEM_ERROR),
        ({"consumer_group": "bad group"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
    ],
)
async def test_refused_pulls(start: Starter, fields: dict[str, Any], code: int) -> None:
    rig = await start()
    await rig.send()
    with pytest.raises(MQError) as refused:
        await rig.pull(0, **fields)
    assert refused.value.code == code


async def test_pulls_filter_by_the_properties_that_sql_names(start: Starter) -> None:
    rig = await start(enable_property_filter=True)
    for number in range(10):
        await rig.send(b"%d" % number, properties=f"a\x01{number}\x02")
    sql: dict[str, Any] = {"subscription": "a between 3 and 4 or a = 8", "expression_type": "SQL92"}
    assert [message.body for message in await rig.messages(**sql)] == [b"3", b"4", b"8"]
    answer = await rig.pull(9, **sql)
    assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    assert isinstance(answer.header, PullMessageResponse) and answer.header.next_begin_offset == 10
    held = asyncio.ensure_future(rig.pull(10, **{**sql, "sys_flag": HOLD}))
    await rig.send(properties="a\x015\x02")
    await asyncio.sleep(0.1)
    assert not held.done()
    await rig.send(b"wanted", properties="a\x013\x02")
    assert [message.body for message in decode_records((await held).body)] == [b"wanted"]
    for wrong in (
        {**sql, "subscription": "a >"},
        {**sql, "subscription": ""},
        {**sql, "expression_type": "X"},
    ):
        with pytest.raises(MQError) as refused:
            await rig.pull(0, **wrong)
        assert refused.value.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


async def test_a_push_consumer_pulls_by_the_filter_of_its_heartbeat_also_after_a_restart(
    start: Starter,
) -> None:
    rig = await start(enable_property_filter=True)
    for number in range(4):
        await rig.send(b"%d" % number, properties=f"a\x01{number}\x02")

    async def heartbeat(expression: str, version: int) -> None:
        wanted = SubscriptionData("T", expression, sub_version=version, expression_type="SQL92")
        consumer = ConsumerData("g", ConsumeType.PASSIVELY, subscription_data_set=[wanted])
        await rig.call(Heartbeat(), encode(HeartbeatData("c", consumer_data_set=[consumer])))

    async def code(version: int) -> int:
        try:
            return (await rig.pull(0, sys_flag=0, subscription=None, sub_version=version)).code
        except MQError as error:
            return error.code

    await heartbeat("a >", 1)
    assert await code(1) == ResponseCode.FILTER_DATA_NOT_EXIST
    await heartbeat("a > 1", 2)
    bodies = [m.body for m in await rig.messages(sys_flag=0, subscription=None, sub_version=2)]
    assert bodies == [b"2", b"3"]
    assert await code(3) == ResponseCode.SUBSCRIPTION_NOT_LATEST
    await rig.broker.stop()
    rig = await start(enable_property_filter=True)
    found = rig.broker.broker.tables.filters.get("T", "g")
    assert found is not None and found.data.expression == "a > 1"
    await heartbeat("a > 2", 9)
    found.data.client_version = 8
    assert await code(9) == ResponseCode.SUCCESS


async def test_a_held_pull_is_woken_by_a_message_it_wants_and_by_no_other(start: Starter) -> None:
    rig = await start()
    await rig.send(properties="TAGS\x01a\x02")
    held = asyncio.ensure_future(rig.pull(1, sys_flag=HOLD, subscription="a || b"))
    await asyncio.sleep(0.05)
    await rig.send(properties="TAGS\x01c\x02")
    await rig.send(queue=1, properties="TAGS\x01b\x02")
    await asyncio.sleep(0.1)
    assert not held.done()
    await rig.send(b"wanted", properties="TAGS\x01b\x02")
    (message,) = decode_records((await held).body)
    assert message.body == b"wanted" and message.queue_offset == 2


async def test_a_held_pull_returns_when_its_time_is_up(start: Starter) -> None:
    rig = await start()
    await rig.send()
    began = time.monotonic()
    answer = await rig.pull(1, sys_flag=HOLD, suspend_timeout_millis=150)
    assert answer.code == ResponseCode.PULL_NOT_FOUND
    assert 0.14 < time.monotonic() - began < 2


async def test_a_client_of_a_broadcasting_group_goes_on_where_it_was_when_a_proxy_pulls_for_it(
    start: Starter,
) -> None:
    rig = await start()
    for _ in range(5):
        await rig.send()
    consumer = ConsumerData("g", ConsumeType.PASSIVELY, MessageModel.BROADCASTING)
    consumer.subscription_data_set = [SubscriptionData("T", "*")]
    await rig.call(Heartbeat(), encode(HeartbeatData("c1", consumer_data_set=[consumer])))
    assert (await rig.pull(3)).code == ResponseCode.SUCCESS

    async def by_proxy(offset: int, client: str) -> tuple[int, int]:
        answer = await rig.pull(offset, request_source=1, proxy_froward_client_id=client)
        assert isinstance(answer.header, PullMessageResponse)
        return answer.code, answer.header.next_begin_offset

    assert await by_proxy(0, "c1") == (ResponseCode.PULL_OFFSET_MOVED, 3)
    assert await by_proxy(3, "c1") == (ResponseCode.SUCCESS, 5)
    assert (await rig.pull(1)).code == ResponseCode.PULL_OFFSET_MOVED, "back at the broker"
    assert (await rig.pull(4)).code == ResponseCode.SUCCESS
    assert await by_proxy(-1, "c2") == (ResponseCode.PULL_OFFSET_MOVED, 0), "nothing is known of it"
    rig.broker.broker.tables.offsets.commit("g@broadcast", "T", 0, 2)
    assert await by_proxy(-1, "c3") == (ResponseCode.PULL_OFFSET_MOVED, 2)
    assert await by_proxy(2, "c3") == (ResponseCode.SUCCESS, 5)


async def test_a_reset_offset_is_given_to_the_next_pull_once(start: Starter) -> None:
    rig = await start()
    await rig.send()
    await rig.send()
    rig.broker.broker.tables.offsets.reset("g", "T", 0, 1)
    answer = await rig.pull(0)
    assert answer.code == ResponseCode.PULL_OFFSET_MOVED
    assert isinstance(answer.header, PullMessageResponse) and answer.header.next_begin_offset == 1
    assert (await rig.pull(1)).code == ResponseCode.SUCCESS


# -- name servers, ports, processes


async def test_topics_reach_the_name_server_at_once_and_leave_again(start: Starter, tmp_path: Path) -> None:
    namesrv = NamesrvService(
        NamesrvConfig(listen_port=0, bind_address="127.0.0.1", kv_config_path=str(tmp_path / "kv.json"))
    )
    await namesrv.start()
    address = f"127.0.0.1:{namesrv.port}"
    try:
        # The first name server does not exist; it must not delay the other.
        rig = await start(namesrv_addr=f"127.0.0.1:1;{address}")
        await rig.send(topic="Fresh")

        async def route() -> TopicRouteData | None:
            try:
                answer = await rig.client.call(address, GetRouteInfo(topic="Fresh"))
            except MQError:
                return None
            return decode(answer.body, TopicRouteData)

        found = None
        for _ in range(100):
            if (found := await route()) is not None:
                break
            await asyncio.sleep(0.02)
        assert found is not None
        assert found.broker_datas[0].broker_addrs == {0: f"127.0.0.1:{rig.broker.port}"}
        assert found.queue_datas[0].write_queue_nums == 4
        await rig.broker.stop()
        assert await route() is None
    finally:
        await namesrv.stop()


async def test_a_name_server_that_was_restarted_has_the_routes_back_at_once(
    start: Starter, tmp_path: Path
) -> None:
    """Not only at the next period, which is half a minute away."""
    (port,) = free_ports(1)
    found_after = []
    for life in range(3):
        namesrv = NamesrvService(
            NamesrvConfig(
                listen_port=port, bind_address="127.0.0.1", kv_config_path=str(tmp_path / "kv.json")
            )
        )
        await namesrv.start()
        began = time.monotonic()
        if life == 0:
            rig = await start(namesrv_addr=f"127.0.0.1:{port}")
            await rig.send(topic="Kept")
        client = RemotingClient()
        async with asyncio.timeout(10):
            while True:
                try:
                    await client.call(f"127.0.0.1:{port}", GetRouteInfo(topic="Kept"))
                    break
                except MQError:
                    await asyncio.sleep(0.02)
        found_after.append(time.monotonic() - began)
        await client.close()
        await namesrv.stop()
    assert max(found_after[1:]) < 2.5, found_after


async def test_a_name_server_that_closes_every_connection_is_not_registered_with_in_a_loop(
    start: Starter,
) -> None:
    answered: list[float] = []

    def register(request: Request) -> Reply:
        answered.append(time.monotonic())
        asyncio.get_running_loop().call_later(0.01, request.connection.close)
        return Reply(ext={})

    dispatcher = Dispatcher()
    dispatcher.on_code(RequestCode.REGISTER_BROKER, register)
    server = RemotingServer(dispatcher, "127.0.0.1", 0)
    await server.start()
    try:
        await start(namesrv_addr=f"127.0.0.1:{server.port}")
        await asyncio.sleep(2.5)
    finally:
        await server.stop()
    assert 2 <= len(answered) <= 4, answered


def program(conf: Path) -> list[str]:
    return [sys.executable, "-m", "batonmq", "broker", "-c", str(conf)]


def write_conf(path: Path, **keys: Any) -> Path:
    defaults = {"brokerName": "b", "brokerIP1": "127.0.0.1", "bindAddress": "127.0.0.1", "listenPort": 0}
    path.write_text("".join(f"{key}={value}\n" for key, value in {**defaults, **keys}.items()))
    return path


def test_a_process_is_ready_within_a_second_and_stops_cleanly_on_sigterm(tmp_path: Path) -> None:
    conf = write_conf(tmp_path / "b.conf", storePathRootDir=tmp_path / "store", namesrvAddr="127.0.0.1:1")
    with subprocess.Popen(
        program(conf), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("The broker[b, 127.0.0.1:")
        assert line.endswith("] boot success. serializeType=JSON and name server is 127.0.0.1:1\n")
        anonymous = next(
            int(row.split()[1])
            for row in Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
            if row.startswith("Anonymous:")
        )
        assert anonymous < 100 * 1024, f"{anonymous} KiB of anonymous memory"
        process.send_signal(signal.SIGTERM)
        assert process.wait(15) == 0
    assert not (tmp_path / "store" / "abort").exists()


async def test_what_cannot_start_says_why_in_one_line(start: Starter, tmp_path: Path) -> None:
    rig = await start()
    (tmp_path / "file").write_text("")
    for keys, expected in (
        ({"storePathRootDir": tmp_path / "s2", "listenPort": rig.broker.port}, str(rig.broker.port)),
        ({"storePathRootDir": tmp_path / "store"}, str(tmp_path / "store")),
        ({"storePathRootDir": tmp_path / "file" / "x"}, str(tmp_path / "file")),
        ({"storePathRootDir": tmp_path / "s3", "slaveTimeout": "soon"}, "slaveTimeout=soon"),
        ({"storePathRootDir": tmp_path / "s3", "messageDelayLevel": "1s 2x"}, "messageDelayLevel"),
        ({"storePathRootDir": tmp_path / "s3", "brokerRole": "SLAVE"}, "brokerId=0"),
    ):
        conf = write_conf(tmp_path / "bad.conf", **keys)
        done = await asyncio.to_thread(
            subprocess.run, program(conf), capture_output=True, text=True, timeout=20, check=False
        )
        assert done.returncode == 1, (keys, done.stderr)
        lines = [line for line in done.stderr.splitlines() if line.startswith("broker: ")]
        assert len(lines) == 1 and expected in lines[0], (keys, done.stderr)
        assert "Traceback" not in done.stderr
    assert (await rig.send()).queue_offset == 0


async def test_stopped_as_soon_as_it_has_started(start: Starter, tmp_path: Path) -> None:
    """All tasks that it has started end without a warning (which is an error in these tests)."""
    service = BrokerService(
        *configs(tmp_path / "quick", enable_controller_mode=True, controller_addr="127.0.0.1:1")
    )
    await service.start()
    await service.stop()
    gc.collect()


async def test_a_stop_waits_for_the_disk_of_the_tables_before_a_new_topic_is_acknowledged(
    start: Starter, disk_of_tables: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = await start()
    await rig.send(topic="Old")
    disk_of_tables.clear()
    sent = asyncio.ensure_future(rig.send(topic="New"))
    await asyncio.sleep(0.1)
    stopping = asyncio.ensure_future(rig.broker.stop())
    await asyncio.sleep(0.2)
    assert not sent.done()
    disk_of_tables.set()
    await sent
    await stopping

    monkeypatch.setattr(broker_service, "DRAIN_MS", 100)
    rig = await start()
    disk_of_tables.clear()
    sent = asyncio.ensure_future(rig.send(topic="Newer"))
    await asyncio.sleep(0.1)
    stopping = asyncio.ensure_future(rig.broker.stop())
    with pytest.raises((MQError, NetError)):
        await sent
    disk_of_tables.set()
    await stopping


async def test_who_is_no_longer_master_acknowledges_no_new_topic(
    start: Starter, disk_of_tables: threading.Event
) -> None:
    rig = await start(enable_controller_mode=True, controller_addr="127.0.0.1:1")
    await rig.broker.part(ReplicaPart).switch.become_master(1, SyncStateSet(frozenset({1}), 1), 1)
    await rig.send(topic="Old")
    disk_of_tables.clear()
    sent = asyncio.ensure_future(rig.send(topic="New"))
    await asyncio.sleep(0.1)
    await rig.broker.part(ReplicaPart).switch.become_slave(2, 1, 2, "127.0.0.1:1", "127.0.0.1:2")
    with pytest.raises(MQError) as refused:
        await sent
    assert refused.value.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert not rig.broker.part(MessagesPart).new_topics.held


async def test_a_backlog_of_sends_to_new_topics_is_bounded(
    start: Starter, disk_of_tables: threading.Event
) -> None:
    rig = await start(send_thread_pool_queue_capacity=20)
    await rig.send(topic="Old")
    disk_of_tables.clear()
    sends = [asyncio.ensure_future(rig.send(topic="New")) for _ in range(30)]
    await asyncio.sleep(0.3)
    await rig.send(topic="Old")
    disk_of_tables.set()
    outcomes = await asyncio.gather(*sends, return_exceptions=True)
    refused = [each for each in outcomes if isinstance(each, MQError)]
    assert len(refused) == 10 and all("[OVERLOAD]" in each.remark for each in refused)
    await rig.send(topic="New")


async def test_a_stop_while_queues_are_being_flushed_is_clean(
    start: Starter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two threads took from one list of queues to flush."""
    sync = queues.sync_path
    monkeypatch.setattr(queues, "sync_path", lambda path: (time.sleep(0.01), sync(path))[1])
    rig = await start()
    await asyncio.gather(*(rig.send(topic=f"T{number}") for number in range(60)))
    while not rig.broker.broker.store._flushing_queues.locked():
        await asyncio.sleep(0.005)
    await rig.broker.stop()
    assert not (tmp_path / "store" / "abort").exists()
