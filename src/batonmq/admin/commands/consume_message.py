"""consumeMessage: read messages of a topic without being a consumer."""

import click

from batonmq.admin.command import command, not_needed, topic_option
from batonmq.admin.commands.query_msg_by_id import show
from batonmq.admin.operations import messages
from batonmq.admin.output import Output
from batonmq.admin.session import Admin, AdminError
from batonmq.admin.times import TIME, parse_times


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
    help="Most messages to show.",
)
@not_needed("-g", "--consumerGroup")
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
    if queue_id is not None and broker is None:
        raise AdminError("-i needs -b with the broker's name")
    if offset is not None and queue_id is None:
        raise AdminError("-o needs -i with the queue's id")
    times_ms = parse_times(begin, end)
    show(
        out,
        await messages.read(
            admin, topic, count, broker=broker, queue_id=queue_id, offset=offset, times_ms=times_ms
        ),
    )
