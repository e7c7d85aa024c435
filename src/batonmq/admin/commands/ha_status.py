"""haStatus: replication as the brokers of a cluster see it."""

from batonmq.admin.command import broker_option, cluster_option, command
from batonmq.admin.output import Output
from batonmq.admin.session import Admin
from batonmq.protocol.bodies.replication import HARuntimeInfo
from batonmq.protocol.headers.broker import replication as wire
from batonmq.protocol.json import decode


@command("haStatus")
@broker_option
@cluster_option
async def main(admin: Admin, out: Output, broker: str | None, cluster: str | None) -> None:
    """Show replication between master and slaves.

    For a master one row for each slave, with the offset that slave has acknowledged; for a slave its link to
    its master.
    """
    rows: list[list[object]] = []
    for address in await admin.targets(broker, cluster, slaves=True):
        answer = await admin.ask(address, wire.GetBrokerHAStatus())
        info = decode(bytes(answer.body), HARuntimeInfo)
        if not info.master:
            link = info.ha_client_runtime_info
            rate = link.transferred_byte_in_second
            rows.append([address, "slave of", link.master_addr, link.max_offset, "", "", rate])
            continue
        slaves = info.ha_connection_info
        count = f"{info.in_sync_slave_nums} of {len(slaves)} slaves in sync"
        rows.append([address, "master", count, info.master_commit_log_max_offset, "", "", ""])
        for slave in slaves:
            row: list[object] = [address, "replicates to", slave.addr, slave.slave_ack_offset, slave.diff]
            rows.append([*row, slave.in_sync, slave.transferred_byte_in_second])
    out.table(["broker", "role", "peer", "offset", "behind", "inSync", "bytesPerSecond"], rows)
