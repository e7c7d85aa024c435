"""haStatus: replication as the brokers of a cluster see it."""

from batonmq.admin.command import broker_option, cluster_option, command
from batonmq.admin.output import Output
from batonmq.admin.session import Admin
from batonmq.protocol.bodies import HARuntimeInfo, decode
from batonmq.protocol.headers import broker as wire


@command("haStatus")
@broker_option
@cluster_option
async def main(admin: Admin, out: Output, broker: str | None, cluster: str | None) -> None:
    """Show each master's replicas with their acknowledged offsets, and each slave's link to its master."""
    rows: list[list[object]] = []
    for address in await admin.targets(broker, cluster, slaves=True):
        answer = await admin.ask(address, wire.GetBrokerHAStatus())
        info = decode(bytes(answer.body), HARuntimeInfo)
        if not info.master:
            link = info.ha_client_runtime_info
            rate = link.transferred_byte_in_second
            rows.append([address, "slave of", link.master_addr, link.max_offset, "", "", rate])
            continue
        rows.append(
            [address, "master", "", info.master_commit_log_max_offset, "", info.in_sync_slave_nums, ""]
        )
        for replica in info.ha_connection_info:
            rate = replica.transferred_byte_in_second
            row: list[object] = [
                address,
                "replicates to",
                replica.addr,
                replica.slave_ack_offset,
                replica.diff,
            ]
            rows.append([*row, replica.in_sync, rate])
    out.table(["broker", "role", "peer", "offset", "behind", "inSync", "bytesPerSecond"], rows)
