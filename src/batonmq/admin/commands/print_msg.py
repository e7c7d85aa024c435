"""printMsg: read all messages of a topic of a stretch of time."""

import click

from batonmq.admin.command import command, topic_option
from batonmq.admin.commands.consume_message import read_topic
from batonmq.admin.output import Output
from batonmq.admin.session import Admin


@command("printMsg")
@topic_option
@click.option("-b", "--beginTimestamp", "begin", help="Stored at or after.")
@click.option("-e", "--endTimestamp", "end", help="Stored at or before.")
@click.option("-c", "--MessageNumber", "count", type=int, default=10_000, show_default=True, help="At most.")
async def main(admin: Admin, out: Output, topic: str, begin: str | None, end: str | None, count: int) -> None:
    """Show the messages of a topic of a stretch of time, queue by queue."""
    await read_topic(admin, out, topic, None, None, None, begin, end, count)
