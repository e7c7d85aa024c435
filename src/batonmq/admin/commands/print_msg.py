"""printMsg: read all messages of a topic of a stretch of time."""

from typing import Final

import click

from batonmq.admin.command import command, not_needed, topic_option
from batonmq.admin.commands.query_msg_by_id import show
from batonmq.admin.operations import messages
from batonmq.admin.output import Output
from batonmq.admin.session import Admin
from batonmq.admin.times import TIME, parse_times

DEFAULT_COUNT: Final = 10_000


def _count(context: click.Context, option: click.Parameter, text: str | int) -> int:
    """The number, or the default if it is a charset."""
    if not str(text).lstrip("-").isdigit():
        return DEFAULT_COUNT
    if int(text) < 1:
        raise click.BadParameter("is less than 1", context, option)
    return int(text)


@command("printMsg")
@topic_option
@click.option("-b", "--beginTimestamp", "begin", help=f"Stored at or after: {TIME}.")
@click.option("-e", "--endTimestamp", "end", help=f"Stored at or before: {TIME}.")
@click.option("-s", "--subExpression", "tags", default="*", help="Only these tags: 'a || b'.")
@click.option(
    "-c",
    "--MessageNumber",
    "--charsetName",
    "count",
    type=str,
    default=str(DEFAULT_COUNT),
    show_default=True,
    callback=_count,
    help="At most so many. A charset, as mqadmin takes it, is ignored: bodies are shown as UTF-8.",
)
@not_needed("-d", "--printBody", bool)
@not_needed("-l", "--lmqParentTopic")
async def main(
    admin: Admin, out: Output, topic: str, begin: str | None, end: str | None, tags: str, count: int
) -> None:
    """Show messages of a topic by their time.

    Stored from -b to -e, queue by queue.
    """
    found = await messages.read(admin, topic, count, times_ms=parse_times(begin, end))
    show(out, messages.tagged(found, tags))
