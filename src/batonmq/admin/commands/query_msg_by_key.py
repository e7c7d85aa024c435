"""queryMsgByKey: find messages by key."""

import click

from batonmq.admin.command import command, not_needed, topic_option
from batonmq.admin.commands.query_msg_by_id import show
from batonmq.admin.operations import messages
from batonmq.admin.output import Output
from batonmq.admin.session import Admin
from batonmq.admin.times import TIME, parse_times


@command("queryMsgByKey")
@topic_option
@click.option("-k", "--msgKey", "key", required=True, help="Key.")
@click.option("-b", "--beginTimestamp", "begin", help=f"Stored at or after: {TIME}.")
@click.option("-e", "--endTimestamp", "end", help=f"Stored at or before: {TIME}.")
@click.option(
    "-m",
    "--maxNum",
    "count",
    type=click.IntRange(1),
    default=64,
    show_default=True,
    help="Most messages to show.",
)
@not_needed("-c", "--cluster")
async def main(
    admin: Admin, out: Output, topic: str, key: str, begin: str | None, end: str | None, count: int
) -> None:
    """Show messages that were sent with a key."""
    show(out, await messages.by_key(admin, topic, key, count, parse_times(begin, end)))
