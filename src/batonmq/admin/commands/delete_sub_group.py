"""deleteSubGroup: delete a consumer group."""

import click

from batonmq.admin.command import broker_option, command, group_option, masters_option
from batonmq.admin.output import Output
from batonmq.admin.session import Admin
from batonmq.protocol.headers.broker import topics as wire


@command("deleteSubGroup")
@broker_option
@masters_option
@group_option
@click.option("-r", "--removeOffset", "remove", type=bool, default=False, help="Also forget its offsets.")
async def main(
    admin: Admin, out: Output, broker: str | None, cluster: str | None, group: str, remove: bool
) -> None:
    """Delete a consumer group.

    From one broker with -b, from all masters of a cluster with -c.
    """
    targets = await admin.targets(broker, cluster)
    for address in targets:
        await admin.ask(address, wire.DeleteSubscriptionGroup(group_name=group, clean_offset=remove))
    out.done(f"group {group} deleted at {', '.join(targets)}", group=group, brokers=targets)
