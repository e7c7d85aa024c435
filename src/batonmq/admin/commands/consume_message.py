"""consumeMessage: read messages of a topic without being a consumer."""

import click

from batonmq.admin.command import command, topic_option
from batonmq.admin.commands.query_msg_by_id import show
from batonmq.admin.output import Output
from batonmq.admin.session import Admin, AdminError
from batonmq.admin.times import TIME, parse_time
from batonmq.protocol.bodies.common import MessageQueue
from batonmq.protocol.headers.broker import pull as wire
from batonmq.protocol.message.record import MessageExt


@command("consumeMessage")
@topic_option
@click.option("-b", "--brokerName", "broker", help="Only this broker.")
@click.option("-i", "--queueId", "queue_id", type=int, help="Only this queue; with -b.")
@click.option("-o", "--offset", type=int, help="From this queue offset on; with -b and -i.")
@click.option("-s", "--beginTimestamp", "begin", help=f"Stored at or after: {TIME}.")
@click.option("-e", "--endTimestamp", "end", help=f"Stored at or before: {TIME}.")
@click.option(
    "-c",
    "--MessageNumber",
    "count",
    type=click.IntRange(1),
    default=128,
    show_default=True,
    help="At most so many.",
)
async def main(
    admin: Admin,
    out: Output,
    topic: str,
    broker: str | None,
    queue_id: int | None,
    offset: int | None,
    begin: str | None,
    end: str | None,
    count: int,
) -> None:
    """Show messages of a topic.

    Of all its queues, of one broker (-b) or of one queue (-b and -i), oldest first in each queue. No consumer
    group is involved, and no offset moves.
    """
    await read_topic(admin, out, topic, broker, queue_id, offset, begin, end, count)


async def read_topic(
    admin: Admin,
    out: Output,
    topic: str,
    broker: str | None,
    queue_id: int | None,
    offset: int | None,
    begin: str | None,
    end: str | None,
    count: int,
) -> None:
    """Show messages; `consumeMessage` and `printMsg` differ only in their options."""
    if queue_id is not None and broker is None:
        raise AdminError("-i needs -b with the broker's name")
    if offset is not None and queue_id is None:
        raise AdminError("-o needs -i with the queue's id")
    begin_ms, end_ms = parse_time(begin) if begin else 0, parse_time(end) if end else 1 << 62
    route = await admin.route(topic)
    addresses = await admin.masters_of_topic(topic)
    found: list[MessageExt] = []
    for queues in sorted(route.queue_datas, key=lambda q: q.broker_name):
        if broker not in (None, queues.broker_name) or queues.broker_name not in addresses:
            continue
        for number in range(queues.read_queue_nums):
            if queue_id in (None, number):
                queue = MessageQueue(topic=topic, broker_name=queues.broker_name, queue_id=number)
                address, left = addresses[queues.broker_name], count - len(found)
                found += await _read(admin, address, queue, offset, begin_ms, end_ms, left)
    show(out, found)


async def _read(
    admin: Admin,
    address: str,
    queue: MessageQueue,
    offset: int | None,
    begin_ms: int,
    end_ms: int,
    count: int,
) -> list[MessageExt]:
    if offset is None:
        header = wire.SearchOffset(topic=queue.topic, queue_id=queue.queue_id, timestamp=begin_ms)
        answer = await admin.ask(address, header)
        assert isinstance(answer.header, wire.SearchOffsetResponse)
        offset = answer.header.offset
    found: list[MessageExt] = []
    while len(found) < count:
        messages = await admin.pull(address, queue, offset, min(32, count - len(found)))
        kept = [m for m in messages if begin_ms <= m.store_timestamp <= end_ms and m.queue_offset >= offset]
        found += kept
        if not messages or len(kept) < len(messages):
            break
        offset = messages[-1].queue_offset + 1
    return found[:count]
