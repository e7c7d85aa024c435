"""queryCq: raw entries of a consume queue."""

import click

from batonmq.admin.command import command, topic_option
from batonmq.admin.operations import messages
from batonmq.admin.output import Output
from batonmq.admin.session import Admin


@command("queryCq")
@topic_option
@click.option("-q", "--queue", "queue_id", type=int, required=True, help="Queue id.")
@click.option("-i", "--index", type=int, required=True, help="Queue offset of the first entry.")
@click.option(
    "-c", "--count", type=click.IntRange(1), default=10, show_default=True, help="Number of entries."
)
@click.option("-b", "--broker", "broker", help="Broker, host:port.")
@click.option("-g", "--consumer", "group", help="Also show this group's subscription.")
async def main(
    admin: Admin,
    out: Output,
    topic: str,
    queue_id: int,
    index: int,
    count: int,
    broker: str | None,
    group: str | None,
) -> None:
    """Show entries of a consume queue.

    Where in the commit log they point, and the hash of each message's tag.
    """
    entries = await messages.queue_entries(admin, topic, queue_id, index, count, broker=broker, group=group)
    rows = [
        [index + at, entry.physic_offset, entry.physic_size, entry.tags_code]
        for at, entry in enumerate(entries)
    ]
    out.table(["index", "commitLogOffset", "size", "tagsCode"], rows)
