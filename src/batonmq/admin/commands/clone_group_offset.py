"""cloneGroupOffset: give one group the offsets of another."""

import click

from batonmq.admin.command import command
from batonmq.admin.operations import offsets
from batonmq.admin.output import Output
from batonmq.admin.session import Admin


@command("cloneGroupOffset")
@click.option("-s", "--srcGroup", "source", required=True, help="Group to copy from.")
@click.option("-d", "--destGroup", "target", required=True, help="Group to copy to.")
@click.option("-t", "--topic", help="Only this topic.")
@click.option("-o", "--offline", type=bool, default=False, help="Also topics it does not subscribe to now.")
async def main(admin: Admin, out: Output, source: str, target: str, topic: str | None, offline: bool) -> None:
    """Copy the offsets of one group to another.

    The target group then continues where the source group is, on every broker.
    """
    brokers = await offsets.clone(admin, source, target, topic=topic, offline=offline)
    out.done(f"offsets of {source} copied to {target}", brokers=brokers)
