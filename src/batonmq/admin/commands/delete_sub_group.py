"""deleteSubGroup: delete a consumer group."""

import click

from batonmq.admin.command import broker_option, command, group_option, masters_option, targets
from batonmq.admin.operations import groups
from batonmq.admin.output import Output
from batonmq.admin.session import Admin


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
    addresses = await targets(admin, broker, cluster)
    await groups.delete(admin, addresses, group, with_offsets=remove)
    out.done(f"group {group} deleted at {', '.join(addresses)}", group=group, brokers=addresses)
