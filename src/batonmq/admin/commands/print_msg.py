"""printMsg: read all messages of a topic of a stretch of time."""

import click

from batonmq.admin.command import command, topic_option
from batonmq.admin.commands.query_msg_by_id import show
from batonmq.admin.operations import messages
from batonmq.admin.output import Output
from batonmq.admin.session import Admin
from batonmq.admin.times import TIME, parse_times


@command("printMsg")
@topic_option
@click.option("-b", "--beginTimestamp", "begin", help=f"Stored at or after: {TIME}.")
@click.option("-e", "--endTimestamp", "end", help=f"Stored at or before: {TIME}.")
@click.option(
    "-c",
    "--MessageNumber",
    "count",
    type=click.IntRange(1),
    default=10_000,
    show_default=True,
    help="At most so many.",
)
async def main(admin: Admin, out: Output, topic: str, begin: str | None, end: str | None, count: int) -> None:
    """Show messages of a topic by their time.

    Stored from -b to -e, queue by queue.
    """
    show(out, await messages.read(admin, topic, count, times_ms=parse_times(begin, end)))
