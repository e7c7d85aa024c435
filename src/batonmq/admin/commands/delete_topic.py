"""deleteTopic: delete a topic from a cluster."""

import click

from batonmq.admin.command import command, topic_option
from batonmq.admin.output import Output
from batonmq.admin.session import Admin
from batonmq.protocol.headers import namesrv as namesrv_wire
from batonmq.protocol.headers.broker import topics as wire


@command("deleteTopic")
@topic_option
@click.option("-c", "--clusterName", "cluster", required=True, help="Cluster.")
async def main(admin: Admin, out: Output, topic: str, cluster: str) -> None:
    """Delete a topic and all that belongs to it.

    Its routes, consumer offsets and consume queues on all brokers of a cluster. Its messages go when their
    commit log files expire.
    """
    masters = await admin.targets(None, cluster)
    for address in masters:
        await admin.ask(address, wire.DeleteTopic(topic=topic))
    for address in admin.namesrv:
        await admin.ask(address, namesrv_wire.DeleteTopicInNamesrv(topic=topic, cluster_name=cluster))
    out.done(f"topic {topic} deleted from cluster {cluster}", topic=topic, brokers=masters)
