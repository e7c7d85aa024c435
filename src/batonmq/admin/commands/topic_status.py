"""topicStatus: offsets of a topic's queues."""

import click

from batonmq.admin.command import command, topic_option
from batonmq.admin.operations import topics
from batonmq.admin.output import Output, time_text
from batonmq.admin.session import Admin


@command("topicStatus")
@topic_option
@click.option("-c", "--cluster", "cluster", help="Only brokers of this cluster.")
async def main(admin: Admin, out: Output, topic: str, cluster: str | None) -> None:
    """Show the offsets of a topic's queues.

    First and next offset, and the time of the last message.
    """
    rows = [
        [at.broker, at.queue_id, at.min_offset, at.max_offset, time_text(at.last_stored_ms)]
        for at in await topics.status(admin, topic, cluster)
    ]
    out.table(["broker", "queueId", "minOffset", "maxOffset", "lastUpdated"], rows)
