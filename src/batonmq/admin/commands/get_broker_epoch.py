"""getBrokerEpoch: the master epochs in brokers' logs."""

import click

from batonmq.admin.command import cluster_option, command
from batonmq.admin.operations import replication
from batonmq.admin.output import Output
from batonmq.admin.session import Admin, AdminError


@command("getBrokerEpoch")
@cluster_option
@click.option("-b", "--brokerName", "name", help="Only brokers of this name.")
async def main(admin: Admin, out: Output, cluster: str | None, name: str | None) -> None:
    """Show the master epochs of brokers' logs.

    Which part of each broker's log was written in which master epoch; replicas of a broker set agree in them.
    """
    if cluster is None and name is None:
        raise AdminError("give -b with a broker's name or -c with a cluster's name")
    rows = [
        [log.broker, log.broker_id, log.address, entry.epoch, entry.start_offset, entry.end_offset]
        for log in await replication.epochs(admin, cluster, name)
        for entry in log.entries
    ]
    out.table(["broker", "id", "address", "epoch", "startOffset", "endOffset"], rows)
