"""topicClusterList: the clusters that have a topic."""

from batonmq.admin.command import command, topic_option
from batonmq.admin.operations import topics
from batonmq.admin.output import Output
from batonmq.admin.session import Admin


@command("topicClusterList")
@topic_option
async def main(admin: Admin, out: Output, topic: str) -> None:
    """List the clusters that have a topic."""
    found = {queues.cluster for queues in await topics.route(admin, topic)}
    out.table(["cluster"], [[cluster] for cluster in sorted(found) if cluster])
