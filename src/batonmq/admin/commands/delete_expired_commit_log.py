"""deleteExpiredCommitLog: delete old commit log files now."""

import click

from batonmq.admin.command import broker_option, command, targets
from batonmq.admin.operations import brokers
from batonmq.admin.output import Output
from batonmq.admin.session import Admin


@command("deleteExpiredCommitLog")
@broker_option
@click.option("-c", "--clusterName", "--cluster", "cluster", help="All brokers of a cluster.")
async def main(admin: Admin, out: Output, broker: str | None, cluster: str | None) -> None:
    """Delete expired commit log files now.

    Brokers look for them by themselves at their hour (deleteWhen).
    """
    addresses = await targets(admin, broker, cluster, slaves=True)
    await brokers.delete_expired_commit_logs(admin, addresses)
    out.done(f"expired files deleted at {', '.join(addresses)}", brokers=addresses)
