"""Messages: found by id, key, offset or time without a consumer group; one sent."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Final

from batonmq.admin.session import Admin, AdminError
from batonmq.client.errors import NotSafelyStored, SendFailed
from batonmq.client.message import Message, SendResult
from batonmq.client.producer import Producer
from batonmq.protocol.bodies.clients import ConsumeMessageDirectlyResult
from batonmq.protocol.bodies.common import MessageQueue
from batonmq.protocol.bodies.statistics import ConsumeQueueData, QueryConsumeQueueResponseBody
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.compression import CompressionError
from batonmq.protocol.headers.broker import pull as wire
from batonmq.protocol.headers.client import ConsumeMessageDirectly
from batonmq.protocol.json import decode
from batonmq.protocol.message.ids import decode_message_id
from batonmq.protocol.message.light import offset_in
from batonmq.protocol.message.logical import in_logical_queue
from batonmq.protocol.message.record import MessageExt, decode_record, decode_records, inflate
from batonmq.protocol.names import TOOLS_GROUP

ALWAYS: Final = (0, (1 << 63) - 1)
"""All times, as first and last ms."""
ALL: Final = (1 << 63) - 1
"""As many messages as there are."""
MAX_DUPLICATES: Final = 32
"""How many messages of one unique id are looked at."""
_PULL_SIZE: Final = 32
_PULL_ANSWERS: Final = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    }
)
_QUERY_ANSWERS: Final = frozenset({ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND})


async def by_offset_id(admin: Admin, message_id: str) -> MessageExt:
    """The message of an offset id, which says host, port and commit log offset.

    Raises `MessageFormatError` if it is no such id.
    """
    ip, port, offset = decode_message_id(message_id)
    host = f"[{ip}]" if ":" in ip else ip
    answer = await admin.ask(f"{host}:{port}", wire.ViewMessage(offset=offset))
    return _readable(decode_record(bytes(answer.body), inflate=False))


async def by_key(
    admin: Admin, topic: str, key: str, count: int, times_ms: tuple[int, int] = ALWAYS
) -> list[MessageExt]:
    """At most `count` messages sent with a key and stored within `times_ms`; newest first."""
    found = await _query(admin, topic, key, count, times_ms)
    return [message for message in found if key in message.keys]


async def by_unique_id(admin: Admin, topic: str, message_id: str) -> list[MessageExt]:
    """All messages with an id that the producer gave, newest first: a message sent twice is stored twice."""
    found = await _query(admin, topic, message_id, MAX_DUPLICATES, ALWAYS)
    return [message for message in found if message.message_id == message_id]


async def by_queue_offset(admin: Admin, queue: MessageQueue, offset: int) -> MessageExt:
    """The message at an offset of a queue. Raises `AdminError` if the broker or the message is not there."""
    route = await admin.queues(queue.topic)
    address = route.replica(route.broker_of(queue))
    if address is None:
        known = sorted({each.broker_name for each in route.read_queues})
        if queue.broker_name in known:
            raise AdminError(f"{queue} does not exist, or no broker that serves it is up")
        raise AdminError(f"topic {queue.topic} is not at {queue.broker_name}; it is at {', '.join(known)}")
    found, _ = await _pull(admin, address, queue, offset, 1)
    if not found:
        raise AdminError(f"no message at offset {offset} of {queue}")
    return found[0]


async def read(
    admin: Admin,
    topic: str,
    count: int,
    *,
    broker: str | None = None,
    queue_id: int | None = None,
    offset: int | None = None,
    times_ms: tuple[int, int] = ALWAYS,
) -> list[MessageExt]:
    """At most `count` messages of a topic, queue by queue, oldest first in each; no offset moves.

    Args:
        broker: name of the only broker, as queues of the topic name it; None: all.
        queue_id: the only queue of each broker; None: all.
        offset: queue offset to begin with; None: the first message of `times_ms`.
        times_ms: when they were stored, first and last ms.
    """
    route = await admin.queues(topic)
    if not route.read_queues:
        raise AdminError(f"topic {topic} has no queue that may be read")
    found: list[MessageExt] = []
    for queue in route.read_queues:
        address = route.replica(route.broker_of(queue))
        if (
            address is None
            or broker not in (None, queue.broker_name)
            or queue_id not in (None, queue.queue_id)
        ):
            continue
        found += await _read_queue(admin, address, queue, offset, times_ms, count - len(found))
    return found


def tagged(found: Sequence[MessageExt], tags: str) -> list[MessageExt]:
    """Those with one of the tags ``a || b``; all for ``*``."""
    wanted = {tag for each in tags.split("||") if (tag := each.strip()) and tag != "*"}
    return [message for message in found if not wanted or message.tags in wanted]


async def consume_directly(
    admin: Admin, group: str, client_id: str, message: MessageExt
) -> ConsumeMessageDirectlyResult:
    """Have one client of a group handle a message now, and return what became of it. Raises `MQError` if the
    client is not connected to the broker of the message."""
    host, port = message.store_address
    header = ConsumeMessageDirectly(
        consumer_group=group,
        client_id=client_id,
        msg_id=message.offset_message_id,
        topic=message.topic,
    )
    answer = await admin.ask(f"[{host}]:{port}" if ":" in host else f"{host}:{port}", header)
    return decode(bytes(answer.body), ConsumeMessageDirectlyResult)


async def queue_entries(
    admin: Admin,
    topic: str,
    queue_id: int,
    index: int,
    count: int,
    *,
    broker: str | None = None,
    group: str | None = None,
) -> list[ConsumeQueueData]:
    """At most `count` entries of a consume queue from `index` on, at `broker` or at one that has the topic.

    With `group` the broker also says whether its subscription takes each entry.
    """
    address = broker or await admin.a_broker_of(topic)
    header = wire.QueryConsumeQueue(
        topic=topic, queue_id=queue_id, index=index, count=count, consumer_group=group
    )
    answer = await admin.ask(address, header)
    return decode(bytes(answer.body), QueryConsumeQueueResponseBody).queue_data


def _producer(admin: Admin) -> Producer:
    # The producer's default of 3 s is the brokers' slaveTimeout: it would never see FLUSH_SLAVE_TIMEOUT.
    return Producer(
        "TOOLS_PRODUCER",
        namesrv=";".join(admin.namesrv),
        send_timeout_ms=admin.timeout_ms,
        tls=admin.tls,
        credentials=admin.credentials,
    )


async def send(admin: Admin, message: Message, queue: MessageQueue | None = None) -> SendResult:
    """Send one message, to a queue or to any. Raises `AdminError` if it is not known to be stored."""
    async with _producer(admin) as producer:
        try:
            return await producer.send(message, queue=queue)
        except (SendFailed, NotSafelyStored) as error:
            raise AdminError(str(error)) from None


@dataclass(frozen=True, slots=True)
class TimedSend:
    """One send of `timed_sends`. `queue`: None if it failed."""

    queue: MessageQueue | None
    error: str
    ms: float


async def timed_sends(
    admin: Admin, topic: str, count: int, size: int, queues: Sequence[MessageQueue] = ()
) -> AsyncIterator[TimedSend]:
    """Send `count` messages of `size` bytes one after the other, to the queues in turn (to any without), and
    measure each."""
    loop = asyncio.get_running_loop()
    async with _producer(admin) as producer:
        for number in range(count):
            queue = queues[number % len(queues)] if queues else None
            began = loop.time()
            try:
                sent = await producer.send(Message(topic, b"a" * size), queue=queue)
                result = TimedSend(sent.queue, "", (loop.time() - began) * 1000)
            except (SendFailed, NotSafelyStored) as error:
                result = TimedSend(queue, str(error), (loop.time() - began) * 1000)
            yield result


async def _query(
    admin: Admin, topic: str, key: str, count: int, times_ms: tuple[int, int]
) -> list[MessageExt]:
    """What the brokers' indexes have under a key or unique id; newest first."""
    begin_ms, end_ms = times_ms
    header = wire.QueryMessage(
        topic=topic, key=key, max_num=count, begin_timestamp=begin_ms, end_timestamp=end_ms
    )
    found: list[MessageExt] = []
    for address in (await admin.masters_of_topic(topic)).values():
        answer = await admin.ask(address, header, accept=_QUERY_ANSWERS)
        if answer.code == ResponseCode.SUCCESS:
            found += _decoded(bytes(answer.body))
    found.sort(key=lambda message: -message.store_timestamp)
    return found[:count]


async def _read_queue(
    admin: Admin,
    address: str,
    queue: MessageQueue,
    offset: int | None,
    times_ms: tuple[int, int],
    count: int,
) -> list[MessageExt]:
    begin_ms, end_ms = times_ms
    if offset is None:
        header = wire.SearchOffset(topic=queue.topic, queue_id=queue.queue_id, timestamp=begin_ms)
        answer = await admin.ask(address, header)
        assert isinstance(answer.header, wire.SearchOffsetResponse)
        offset = answer.header.offset
    found: list[MessageExt] = []
    while len(found) < count:
        messages, following = await _pull(admin, address, queue, offset, min(_PULL_SIZE, count - len(found)))
        kept = [
            message
            for message in messages
            if begin_ms <= message.store_timestamp <= end_ms and offset_in(queue.topic, message) >= offset
        ]
        found += kept
        if following <= offset or len(kept) < len(messages):
            break
        offset = following
    return found[:count]


async def _pull(
    admin: Admin, address: str, queue: MessageQueue, offset: int, count: int
) -> tuple[list[MessageExt], int]:
    """Up to `count` messages of a queue from an offset on, and the offset to continue at.

    The broker's own limits hold too.
    """
    header = wire.PullMessage.at_once(TOOLS_GROUP, queue.topic, queue.queue_id, offset, count)
    answer = await admin.ask(address, header, accept=_PULL_ANSWERS)
    assert isinstance(answer.header, wire.PullMessageResponse)
    delta = answer.header.offset_delta
    records = bytes(answer.body) if answer.code == ResponseCode.SUCCESS else b""
    if delta is not None:
        records = bytes(in_logical_queue(records, queue.queue_id, delta))
    return _decoded(records), answer.header.next_begin_offset


def _decoded(records: bytes) -> list[MessageExt]:
    return [_readable(message) for message in decode_records(records, inflate=False)]


def _readable(message: MessageExt) -> MessageExt:
    """With its body inflated; as it was stored if that is not possible, for an administrator to see."""
    with contextlib.suppress(CompressionError):
        inflate(message)
    return message
