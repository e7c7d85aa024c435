"""moveControllers: put the brokers of a running cluster under other controllers."""

import click

from batonmq.admin.command import command
from batonmq.admin.operations.moving import Move
from batonmq.admin.output import Output
from batonmq.admin.session import Admin


@command("moveControllers")
@click.option("-a", "--from", "source", required=True, help="The present controllers, host:port;host:port.")
@click.option(
    "-t",
    "--to",
    "target",
    required=True,
    help="The new controllers; they run and do not know these brokers yet.",
)
@click.option("-c", "--clusterName", "cluster", required=True, help="Cluster.")
@click.option("-b", "--brokerName", "names", multiple=True, help="Only this broker set; may be repeated.")
@click.option(
    "--patience",
    "patience_s",
    type=click.FloatRange(1),
    default=300.0,
    show_default=True,
    help="Timeout of each step, s.",
)
async def main(
    admin: Admin,
    out: Output,
    source: str,
    target: str,
    cluster: str,
    names: tuple[str, ...],
    patience_s: float,
) -> None:
    """Put live brokers under other controllers.

    Ours or RocketMQ's, in either direction, one broker set after the other, while clients continue. No
    broker is restarted: controllerAddr is changed in each and in its file. A broker set keeps its master, in
    a new epoch, and for a moment its SyncStateSet is that master alone. A broker set with a replica that is
    down is refused. See docs/operations.md for the plan.

    \b
      batonmq admin moveControllers -n 127.0.0.1:9876 -c DefaultCluster \\
        -a '10.0.0.1:9877;10.0.0.2:9877;10.0.0.3:9877' -t '10.0.1.1:9877;10.0.1.2:9877;10.0.1.3:9877'
    """
    wanted = list(names) or [group.broker_name for group in await admin.groups(cluster)]
    rows = []
    for name in wanted:

        def say(text: str, name: str = name) -> None:
            out.note(f"{name}: {text}")

        moved = await Move(admin, source, target, cluster, name, patience_s=patience_s, say=say).run()
        in_sync = ",".join(map(str, moved.in_sync))
        rows.append(
            [name, moved.master, moved.epoch_before, moved.epoch_after, in_sync, round(moved.took_s, 1)]
        )
    out.table(["broker", "master", "epochBefore", "epochAfter", "inSync", "seconds"], rows)
