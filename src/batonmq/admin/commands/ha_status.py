"""haStatus: replication as the brokers of a cluster see it."""

from batonmq.admin.command import broker_option, cluster_option, command, repeatable, targets
from batonmq.admin.operations import replication
from batonmq.admin.output import Output
from batonmq.admin.session import Admin


@command("haStatus")
@broker_option
@cluster_option
@repeatable
async def main(admin: Admin, out: Output, broker: str | None, cluster: str | None) -> None:
    """Show replication between master and slaves.

    For a master one row for each slave, with the offset that slave has acknowledged; for a slave its link to
    its master.
    """
    rows: list[list[object]] = []
    addresses = await targets(admin, broker, cluster, slaves=True)
    for address, seen in (await replication.status(admin, addresses)).items():
        rows += _master(address, seen, out) if seen.info.master else [_slave(address, seen)]
    out.table(["broker", "role", "peer", "offset", "behind", "inSync", "bytesPerSecond"], rows)


def _master(address: str, seen: replication.BrokerReplication, out: Output) -> list[list[object]]:
    info, unknown = seen.info, None if out.as_json else "-"
    slaves = info.ha_connection_info
    expected = max(len(slaves), seen.total_replicas - 1)
    count = f"{info.in_sync_slave_nums} of {expected} slaves in sync"
    rows: list[list[object]] = [
        [address, "master", count, info.master_commit_log_max_offset, "", "", ""],
    ]
    for slave in slaves:
        reported = slave.slave_ack_offset >= 0
        offset, behind = (slave.slave_ack_offset, slave.diff) if reported else (unknown, unknown)
        row: list[object] = [address, "replicates to", slave.addr, offset, behind]
        rows.append([*row, slave.in_sync, slave.transferred_byte_in_second])
    return rows


def _slave(address: str, seen: replication.BrokerReplication) -> list[object]:
    link = seen.info.ha_client_runtime_info
    if seen.acts:
        role, peer = "acts as master", "no master"
    elif link.last_read_timestamp <= 0:
        # The address alone does not say that the master sends anything: it may have refused this log.
        role, peer = (
            "slave",
            f"not replicating from {link.master_addr}" if link.master_addr else "not replicating",
        )
    else:
        role, peer = "slave of", link.master_addr or ""
    return [address, role, peer, link.max_offset, "", "", link.transferred_byte_in_second]
