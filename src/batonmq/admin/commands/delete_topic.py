"""deleteTopic: delete a topic from a cluster."""

import click

from batonmq.admin.command import command, topic_option
from batonmq.admin.operations import topics
from batonmq.admin.output import Output
from batonmq.admin.session import Admin


@command("deleteTopic")
@topic_option
@click.option("-c", "--clusterName", "cluster", required=True, help="Cluster.")
async def main(admin: Admin, out: Output, topic: str, cluster: str) -> None:
    """Delete a topic and all that belongs to it.

    Its routes, consumer offsets and consume queues on all brokers of a cluster. Its messages go when their
    commit log files expire.
    """
    masters = await topics.delete(admin, topic, cluster)
    out.done(f"topic {topic} deleted from cluster {cluster}", topic=topic, brokers=masters)
