"""cleanExpiredCQ: delete consume queue files nobody needs."""

import click

from batonmq.admin.command import broker_option, command
from batonmq.admin.output import Output
from batonmq.admin.session import Admin
from batonmq.protocol.headers.broker import admin as wire


@command("cleanExpiredCQ")
@broker_option
@click.option("-c", "--cluster", "cluster", help="All masters of a cluster.")
async def main(admin: Admin, out: Output, broker: str | None, cluster: str | None) -> None:
    """Delete expired consume queue files now.

    Files whose messages are no longer in the commit log; a broker does this by itself at its hour.
    """
    targets = await admin.targets(broker, cluster)
    for address in targets:
        await admin.ask(address, wire.CleanExpiredConsumeQueue())
    out.done(f"cleaned {', '.join(targets)}", brokers=targets)
