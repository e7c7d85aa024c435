"""updateTopicPerm: change only the permissions of a topic."""

import click

from batonmq.admin.command import broker_option, command, masters_option, targets, topic_option
from batonmq.admin.operations import topics
from batonmq.admin.output import Output
from batonmq.admin.session import Admin


@command("updateTopicPerm")
@broker_option
@masters_option
@topic_option
@click.option(
    "-p", "--perm", type=click.IntRange(0, 7), required=True, help="2 write, 4 read, 6 both, 0 neither."
)
async def main(
    admin: Admin, out: Output, broker: str | None, cluster: str | None, topic: str, perm: int
) -> None:
    """Allow or forbid reading and writing a topic.

    Everything else of it stays.
    """
    addresses = await targets(admin, broker, cluster)
    await topics.set_permission(admin, addresses, topic, perm)
    out.done(
        f"topic {topic} has perm {perm} at {', '.join(addresses)}", topic=topic, perm=perm, brokers=addresses
    )
