"""cleanUnusedTopic: delete consume queues of topics that no longer exist."""

import click

from batonmq.admin.command import broker_option, command
from batonmq.admin.output import Output
from batonmq.admin.session import Admin
from batonmq.protocol.headers.broker import admin as wire


@command("cleanUnusedTopic")
@broker_option
@click.option("-c", "--cluster", "cluster", help="All masters of a cluster.")
async def main(admin: Admin, out: Output, broker: str | None, cluster: str | None) -> None:
    """Delete the queues of topics that are gone.

    What is left on disk of topics that the broker does not know any more.
    """
    targets = await admin.targets(broker, cluster)
    for address in targets:
        await admin.ask(address, wire.CleanUnusedTopic())
    out.done(f"cleaned {', '.join(targets)}", brokers=targets)
