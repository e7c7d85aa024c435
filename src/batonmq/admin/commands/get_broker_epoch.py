"""getBrokerEpoch: the master epochs in brokers' logs."""

import contextlib

import click

from batonmq.admin.command import cluster_option, command, repeatable
from batonmq.admin.operations import replication
from batonmq.admin.output import Output
from batonmq.admin.session import Admin, AdminError
from batonmq.common.addresses import host_and_port


@command("getBrokerEpoch")
@cluster_option
@click.option("-b", "--brokerName", "name", help="Brokers of this name; or one, host:port.")
@repeatable
async def main(admin: Admin, out: Output, cluster: str | None, name: str | None) -> None:
    """Show the master epochs of brokers' logs.

    Which part of each broker's log was written in which master epoch; replicas of a broker set agree in them.
    Brokers without controllers have none. As in mqadmin -b is a name; host:port is accepted too.
    """
    if cluster is None and name is None:
        raise AdminError("give -b with a broker's name or -c with a cluster's name")
    address = None
    if name is not None:
        with contextlib.suppress(ValueError):
            host_and_port(name)
            name, address = None, name
    rows = [
        [log.broker, log.broker_id, log.address, entry.epoch, entry.start_offset, entry.end_offset]
        for log in await replication.epochs(admin, cluster, name, address=address)
        for entry in log.entries
    ]
    out.table(["broker", "id", "address", "epoch", "startOffset", "endOffset"], rows)
