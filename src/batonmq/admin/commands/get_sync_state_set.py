"""getSyncStateSet: who is in sync with its master, as the controller sees it."""

import click

from batonmq.admin.command import cluster_option, command, controller_option, repeatable
from batonmq.admin.operations import replication
from batonmq.admin.output import Output
from batonmq.admin.session import Admin, AdminError


@command("getSyncStateSet")
@controller_option
@cluster_option
@click.option("-b", "--brokerName", "name", help="Only this broker set.")
@repeatable
async def main(admin: Admin, out: Output, controller: str, cluster: str | None, name: str | None) -> None:
    """Show master, replicas and SyncStateSet.

    Of one broker set (-b) or of all broker sets of a cluster (-c, which needs -n), as decided by the
    controllers.
    """
    if name is None and cluster is None:
        raise AdminError("give -b with a broker's name or -c with a cluster's name")
    names = [name] if name is not None else [g.broker_name for g in await admin.groups(cluster)]
    known = await replication.replicas(admin, controller, names)
    if not known:
        raise AdminError(
            f"the controllers know no broker of {', '.join(names)}: check the brokerName, and that the "
            "brokers run with enableControllerMode=true and controllerAddr naming these controllers"
        )
    rows = []
    for group, info in sorted(known.items()):
        for in_sync, replicas in ((True, info.in_sync_replicas), (False, info.not_in_sync_replicas)):
            for replica in replicas:
                role = "master" if replica.broker_id == info.master_broker_id else "slave"
                row = [group, replica.broker_id, replica.broker_address, role, in_sync, replica.alive]
                rows.append([*row, info.master_epoch or 0, info.sync_state_set_epoch or 0])
    out.table(["broker", "id", "address", "role", "inSync", "alive", "masterEpoch", "setEpoch"], rows)
