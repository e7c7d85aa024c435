"""addWritePerm: let a broker be written to again."""

import click

from batonmq.admin.command import command
from batonmq.admin.operations import namesrv
from batonmq.admin.output import Output
from batonmq.admin.session import Admin


@command("addWritePerm")
@click.option("-b", "--brokerName", "name", required=True, help="Broker name.")
async def main(admin: Admin, out: Output, name: str) -> None:
    """Let producers write to a broker again.

    The opposite of wipeWritePerm, on all name servers.
    """
    changed = await namesrv.allow_writing(admin, name)
    out.table(
        ["namesrv", "broker", "topicsAdded"], [[address, name, count] for address, count in changed.items()]
    )
