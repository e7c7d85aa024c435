"""queryMsgByKey: find messages by key."""

import click

from batonmq.admin.command import command, topic_option
from batonmq.admin.commands.query_msg_by_id import show
from batonmq.admin.output import Output
from batonmq.admin.session import Admin
from batonmq.admin.times import TIME, parse_time
from batonmq.protocol.headers.broker import pull as wire
from batonmq.protocol.message.record import MessageExt, decode_records

QUERY_NOT_FOUND = 22
FOREVER = (1 << 63) - 1


async def find(
    admin: Admin, topic: str, key: str, count: int, begin_ms: int, end_ms: int
) -> list[MessageExt]:
    """Messages with a key, or with that unique id, from every broker of the topic; newest first."""
    header = wire.QueryMessage(
        topic=topic, key=key, max_num=count, begin_timestamp=begin_ms, end_timestamp=end_ms
    )
    found: list[MessageExt] = []
    for address in (await admin.masters_of_topic(topic)).values():
        answer = await admin.ask(address, header, accept=(0, QUERY_NOT_FOUND))
        found += decode_records(bytes(answer.body)) if answer.code == 0 else []
    found.sort(key=lambda message: -message.store_timestamp)
    return found[:count]


@command("queryMsgByKey")
@topic_option
@click.option("-k", "--msgKey", "key", required=True, help="Key.")
@click.option("-b", "--beginTimestamp", "begin", help=f"Stored at or after: {TIME}.")
@click.option("-e", "--endTimestamp", "end", help=f"Stored at or before: {TIME}.")
@click.option(
    "-m", "--maxNum", "count", type=click.IntRange(1), default=64, show_default=True, help="At most so many."
)
async def main(
    admin: Admin, out: Output, topic: str, key: str, begin: str | None, end: str | None, count: int
) -> None:
    """Show messages that were sent with a key."""
    begin_ms, end_ms = parse_time(begin) if begin else 0, parse_time(end) if end else FOREVER
    found = await find(admin, topic, key, count, begin_ms, end_ms)
    show(out, [message for message in found if key in message.keys])
