"""skipAccumulatedMessage: let a group skip what it has not consumed."""

import click

from batonmq.admin.command import command, not_needed, topic_option
from batonmq.admin.commands.reset_offset_by_time_old import show
from batonmq.admin.operations import offsets
from batonmq.admin.output import Output
from batonmq.admin.session import Admin


@command("skipAccumulatedMessage")
@click.option("-g", "--group", "group", required=True, help="Consumer group.")
@topic_option
@click.option(
    "-f",
    "--force",
    type=bool,
    default=True,
    show_default=True,
    help="Also where the group has not come so far yet.",
)
@not_needed("-c", "--cluster")
async def main(admin: Admin, out: Output, group: str, topic: str, force: bool) -> None:
    """Let a group skip all messages up to now.

    \b
      batonmq admin skipAccumulatedMessage -n 127.0.0.1:9876 -g billing -t orders
    """
    moved = await offsets.skip(admin, group, topic, force=force)
    if isinstance(moved, list):
        show(out, moved)
        return
    rows = [[queue.broker_name, queue.queue_id, target] for queue, target in moved.items()]
    out.table(["broker", "queueId", "offset"], rows)
