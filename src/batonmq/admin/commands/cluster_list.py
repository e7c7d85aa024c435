"""clusterList: clusters, their brokers and what these do right now."""

import click

from batonmq.admin.command import command, repeatable
from batonmq.admin.operations import brokers
from batonmq.admin.output import Output
from batonmq.admin.session import Admin


@command("clusterList")
@click.option(
    "-m", "--moreStats", "more", is_flag=True, help="Show message counts of today and yesterday instead."
)
@click.option("-c", "--clusterName", "cluster", help="Only this cluster.")
@repeatable
async def main(admin: Admin, out: Output, more: bool, cluster: str | None) -> None:
    """Show all brokers, their rates and disks.

    Rates are messages a second, `disk` is the used share of the disk. `activated` brokers deliver delayed
    messages, as masters do; a slave is on standby for that.
    """
    rows: list[list[object]] = []
    for state in await brokers.states(admin, cluster):
        row: list[object] = [state.cluster, state.name, state.broker_id, state.address]
        if state.error is not None:
            row += [f"failed: {state.error}", *[""] * (3 if more else 4)]
        elif more:
            row += [state.messages_in("yesterday"), state.messages_out("yesterday")]
            row += [state.messages_in("today"), state.messages_out("today")]
        else:
            row += [state.version, state.in_tps, state.out_tps, state.disk_ratio, state.activated]
        rows.append(row)
    names = ["cluster", "broker", "id", "address"]
    now = ["version", "inTps", "outTps", "disk", "activated"]
    today = ["inYesterday", "outYesterday", "inToday", "outToday"]
    out.table([*names, *(today if more else now)], rows)
