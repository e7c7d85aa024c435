"""deleteTopic: delete a topic from a cluster."""

import click

from batonmq.admin.command import command, targets, topic_option
from batonmq.admin.operations import topics
from batonmq.admin.output import Output
from batonmq.admin.session import Admin


@command("deleteTopic")
@topic_option
@click.option("-c", "--clusterName", "cluster", required=True, help="Cluster.")
async def main(admin: Admin, out: Output, topic: str, cluster: str) -> None:
    """Delete a topic and all that belongs to it.

    Its routes, consumer offsets and consume queues on all brokers of a cluster. Its messages go when their
    commit log files expire. A broker set without a master keeps it, and then the routes stay.
    """
    await targets(admin, None, cluster)  # names the sets that are left out
    deleted = await topics.delete(admin, topic, cluster)
    where = f"at {', '.join(deleted.brokers)}" if deleted.kept else f"from cluster {cluster}"
    out.done(f"topic {topic} deleted {where}", topic=topic, brokers=deleted.brokers, keptBy=deleted.kept)
    note_kept(out, topic, deleted.kept)


def note_kept(out: Output, topic: str, kept: list[str]) -> None:
    """Say that broker sets still have a topic, and what to do about it."""
    if kept:
        out.note(
            f"topic {topic} is still there, and so is its route: {', '.join(kept)} kept it. "
            "Delete it again when all broker sets have a master."
        )
