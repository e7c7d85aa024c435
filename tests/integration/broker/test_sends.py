"""Sends: what is stored, where, in which forms, and what a restart keeps."""

import asyncio
import time

import pytest
from tests.integration.broker.rig import ALL, Rig, Starter, v2

from batonmq.net import RemotingClient
from batonmq.protocol.codes import PullSysFlag, RequestCode
from batonmq.protocol.frame import Command
from batonmq.protocol.headers.broker.admin import UpdateBrokerConfig
from batonmq.protocol.headers.broker.send import SendBatchMessage, SendMessage, SendMessageResponse
from batonmq.protocol.message.batch import BatchItem, encode_batch
from batonmq.protocol.message.ids import unique_id_time_ms
from batonmq.store.config import FlushDiskType


async def test_a_message_comes_back_as_it_was_sent(start: Starter) -> None:
    rig = await start()
    answer = await rig.send(b"hello", properties="KEYS\x01k\x02TAGS\x01a\x02UNIQ_KEY\x01ABC\x02", flag=7)
    assert (answer.queue_id, answer.queue_offset, answer.transaction_id) == (0, 0, "ABC")
    (message,) = await rig.messages()
    assert (message.body, message.flag, message.tags, message.keys) == (b"hello", 7, "a", ["k"])
    assert message.offset_message_id == answer.msg_id
    assert message.properties["CLUSTER"] == "DefaultCluster"
    assert message.born_timestamp == 1_700_000_000_000


@pytest.mark.parametrize("properties", ["", "TAGS\x01a\x02", "TAGS\x01a", "UNIQ_KEY\x01\x02"])
async def test_a_message_without_a_unique_id_gets_one(start: Starter, properties: str) -> None:
    rig = await start()
    first = await rig.send(b"1", properties=properties)
    second = await rig.send(b"2", properties=properties)
    stored = await rig.messages()
    ids = [first.transaction_id, second.transaction_id]
    assert [message.message_id for message in stored] == ids and len(set(ids)) == 2
    made_ms = unique_id_time_ms(str(ids[0]), round(time.time() * 1000))
    assert abs(made_ms - stored[0].store_timestamp) < 60_000, "tools read the time out of it"
    assert [message.tags for message in stored] == ["a" if "TAGS" in properties else None] * 2


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


async def test_sync_flush_acknowledges_what_is_on_disk(start: Starter) -> None:
    rig = await start(flush_disk_type=FlushDiskType.SYNC_FLUSH)
    await asyncio.gather(*(rig.send(b"%d" % n) for n in range(50)))
    store = rig.broker.broker.store
    assert store.flushed_offset == store.max_offset > 0


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
