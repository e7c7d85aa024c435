"""cleanExpiredCQ: delete consume queue files nobody needs."""

import click

from batonmq.admin.command import broker_option, command, targets
from batonmq.admin.operations import brokers
from batonmq.admin.output import Output
from batonmq.admin.session import Admin


@command("cleanExpiredCQ")
@broker_option
@click.option("-c", "--cluster", "cluster", help="All masters of a cluster.")
async def main(admin: Admin, out: Output, broker: str | None, cluster: str | None) -> None:
    """Delete expired consume queue files now.

    Files whose messages are no longer in the commit log; a broker does this by itself at its hour.
    """
    addresses = await targets(admin, broker, cluster)
    await brokers.clean_expired_queues(admin, addresses)
    out.done(f"cleaned {', '.join(addresses)}", brokers=addresses)
