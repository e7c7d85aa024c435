"""getBrokerEpoch: the master epochs in brokers' logs."""

import click

from batonmq.admin.command import cluster_option, command
from batonmq.admin.output import Output
from batonmq.admin.session import Admin, AdminError
from batonmq.protocol.bodies.replication import EpochEntryCache
from batonmq.protocol.headers.broker import replication as wire
from batonmq.protocol.json import decode


@command("getBrokerEpoch")
@cluster_option
@click.option("-b", "--brokerName", "name", help="Only brokers of this name.")
async def main(admin: Admin, out: Output, cluster: str | None, name: str | None) -> None:
    """Show the master epochs of brokers' logs.

    Which part of each broker's log was written in which master epoch; replicas of a group agree in them.
    """
    if cluster is None and name is None:
        raise AdminError("give -b with a broker's name or -c with a cluster's name")
    rows = []
    replicas = await admin.replicas(cluster)
    if name is not None and name not in (broker_name for broker_name, _, _ in replicas):
        raise AdminError(f"no broker {name} is registered{f' in cluster {cluster}' if cluster else ''}")
    for broker_name, broker_id, address in replicas:
        if name not in (None, broker_name):
            continue
        answer = await admin.ask(address, wire.GetBrokerEpochCache())
        cache = decode(bytes(answer.body), EpochEntryCache)
        for entry in cache.epoch_list:
            end = min(entry.end_offset, cache.max_offset)
            rows.append(
                [broker_name, cache.broker_id or broker_id, address, entry.epoch, entry.start_offset, end]
            )
    out.table(["broker", "id", "address", "epoch", "startOffset", "endOffset"], rows)
