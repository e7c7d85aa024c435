"""printMsgByQueue: read all messages of one queue of a stretch of time."""

from collections import Counter

import click

from batonmq.admin.command import command, topic_option
from batonmq.admin.commands.query_msg_by_id import show
from batonmq.admin.operations import messages
from batonmq.admin.output import Output
from batonmq.admin.session import Admin
from batonmq.admin.times import TIME, parse_times


@command("printMsgByQueue")
@topic_option
@click.option("-a", "--brokerName", "broker", required=True, help="Name of the broker.")
@click.option("-i", "--queueId", "queue_id", required=True, type=int, help="The queue.")
@click.option("-s", "--subExpression", "tags", default="*", help="Only these tags: 'a || b'.")
@click.option("-b", "--beginTimestamp", "begin", help=f"Stored at or after: {TIME}.")
@click.option("-e", "--endTimestamp", "end", help=f"Stored at or before: {TIME}.")
@click.option("-p", "--print", "listed", type=bool, help="Show the messages; without it, unless -f is given.")
@click.option("-d", "--printBody", "body", type=bool, help="Bodies are shown anyway.")
@click.option("-f", "--calculate", "counted", type=bool, default=False, help="Count the messages by tag.")
@click.option("-c", "--charsetName", "charset", help="Bodies are shown as UTF-8 anyway.")
async def main(
    admin: Admin,
    out: Output,
    topic: str,
    broker: str,
    queue_id: int,
    tags: str,
    begin: str | None,
    end: str | None,
    listed: bool | None,
    body: bool | None,
    counted: bool,
    charset: str | None,
) -> None:
    """Show the messages of one queue by their time.

    Or count them by tag with -f true.
    """
    found = await messages.read(
        admin, topic, messages.ALL, broker=broker, queue_id=queue_id, times_ms=parse_times(begin, end)
    )
    kept = messages.tagged(found, tags)
    if listed or (listed is None and not counted):
        show(out, kept)
    if counted:
        by_tag = Counter(message.tags for message in kept if message.tags)
        out.table(["tag", "count"], [[tag, count] for tag, count in by_tag.most_common()])
