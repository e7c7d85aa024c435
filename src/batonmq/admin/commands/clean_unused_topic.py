"""cleanUnusedTopic: delete consume queues of topics that no longer exist."""

import click

from batonmq.admin.command import broker_option, command, targets
from batonmq.admin.operations import brokers
from batonmq.admin.output import Output
from batonmq.admin.session import Admin


@command("cleanUnusedTopic")
@broker_option
@click.option("-c", "--cluster", "cluster", help="All masters of a cluster.")
async def main(admin: Admin, out: Output, broker: str | None, cluster: str | None) -> None:
    """Delete the queues of topics that are gone.

    What is left on disk of topics that the broker no longer knows.
    """
    addresses = await targets(admin, broker, cluster)
    await brokers.clean_unused_topics(admin, addresses)
    out.done(f"cleaned {', '.join(addresses)}", brokers=addresses)
