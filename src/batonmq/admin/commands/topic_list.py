"""topicList: all topics the name server knows."""

import click

from batonmq.admin.command import command
from batonmq.admin.operations import topics
from batonmq.admin.output import Output
from batonmq.admin.session import Admin


@command("topicList")
@click.option(
    "-c", "--clusterModel", "with_clusters", is_flag=True, help="Also clusters and consumer groups."
)
async def main(admin: Admin, out: Output, with_clusters: bool) -> None:
    """List all topics.

    With -c also the clusters that have them and the groups that consume them.
    """
    if not with_clusters:
        out.table(["topic"], [[topic] for topic in await topics.names(admin)])
        return
    rows = [
        [cluster, found.topic, group]
        for found in await topics.consumers(admin)
        for cluster in found.clusters or [""]
        for group in found.groups or [""]
    ]
    out.table(["cluster", "topic", "consumerGroup"], rows)
