"""resetOffsetByTimeOld: move the committed offsets of a group that is not connected."""

import click

from batonmq.admin.command import command, not_needed, topic_option
from batonmq.admin.operations import offsets
from batonmq.admin.output import Output
from batonmq.admin.session import Admin
from batonmq.admin.times import TIME, parse_time

COLUMNS = ["broker", "queueId", "brokerOffset", "consumerOffset", "timestampOffset", "resetOffset"]


@command("resetOffsetByTimeOld")
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
@not_needed("-c", "--cluster")
async def main(admin: Admin, out: Output, group: str, topic: str, timestamp: str, force: bool) -> None:
    """Move a stopped group to a point in time.

    Stop the group's clients first: connected ones commit their own offsets again. With clients connected use
    resetOffsetByTime.

    \b
      batonmq admin resetOffsetByTimeOld -n 127.0.0.1:9876 -g billing -t orders -s 2026-01-31#08:00:00:000
    """
    show(out, await offsets.reset_committed(admin, group, topic, parse_time(timestamp), force=force))


def show(out: Output, done: list[offsets.Rollback]) -> None:
    """One row for each queue."""
    rows = [
        [
            each.queue.broker_name,
            each.queue.queue_id,
            each.broker_offset,
            each.consumer_offset,
            each.timestamp_offset,
            each.rollback_offset,
        ]
        for each in done
    ]
    out.table(COLUMNS, rows)
