"""resetOffsetByTime: have a group consume again from a time on, or skip ahead."""

import click

from batonmq.admin.command import command, not_needed, topic_option
from batonmq.admin.operations import offsets
from batonmq.admin.output import Output
from batonmq.admin.session import Admin, AdminError
from batonmq.admin.times import TIME, parse_time


@command("resetOffsetByTime")
@click.option("-g", "--group", "group", required=True, help="Consumer group.")
@topic_option
@click.option("-s", "--timestamp", required=True, help=f"{TIME}.")
@click.option(
    "-f",
    "--force",
    type=bool,
    default=True,
    show_default=True,
    help="Also move offsets forward, skipping messages.",
)
@click.option("-b", "--broker", "broker", help="Only this broker, host:port.")
@click.option("-q", "--queue", "queue_id", type=int, default=-1, help="Only this queue; with -b.")
@click.option("-o", "--offset", type=int, default=-1, help="To this offset; with -b and -q.")
@not_needed("-c", "--cluster")
async def main(
    admin: Admin,
    out: Output,
    group: str,
    topic: str,
    timestamp: str,
    force: bool,
    broker: str | None,
    queue_id: int,
    offset: int,
) -> None:
    """Move a group to a point in time.

    The group then consumes the topic from the first message stored at that time; "now" skips everything.

    \b
      batonmq admin resetOffsetByTime -n 127.0.0.1:9876 -g billing -t orders -s 2026-01-31#08:00:00:000
    """
    if (queue_id >= 0 or offset >= 0) and broker is None:
        raise AdminError("-q and -o need -b with the broker that has the queue")
    if offset >= 0 and queue_id < 0:
        raise AdminError("-o needs -q with the queue's id")
    moved = await offsets.reset(
        admin,
        group,
        topic,
        parse_time(timestamp),
        force=force,
        broker=broker,
        queue_id=None if queue_id < 0 else queue_id,
        offset=None if offset < 0 else offset,
    )
    rows = [[queue.broker_name, queue.queue_id, target] for queue, target in moved.items()]
    out.table(["broker", "queueId", "offset"], rows)
