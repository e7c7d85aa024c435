"""wipeWritePerm: take a broker out of writing."""

import click

from batonmq.admin.command import command
from batonmq.admin.operations import namesrv
from batonmq.admin.output import Output
from batonmq.admin.session import Admin


@command("wipeWritePerm")
@click.option("-b", "--brokerName", "name", required=True, help="Broker name.")
async def main(admin: Admin, out: Output, name: str) -> None:
    """Stop producers from writing to a broker.

    On all name servers, e.g. before the broker is stopped; addWritePerm undoes it.
    """
    changed = await namesrv.forbid_writing(admin, name)
    out.table(
        ["namesrv", "broker", "topicsWiped"], [[address, name, count] for address, count in changed.items()]
    )
