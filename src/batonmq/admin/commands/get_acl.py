"""getAcl: what one user may do."""

import click

from batonmq.admin.command import broker_option, command, masters_option, targets
from batonmq.admin.operations import users
from batonmq.admin.output import Output
from batonmq.admin.session import Admin


@command("getAcl")
@broker_option
@masters_option
@click.option("-s", "--subject", required=True, help="Whose rights, User:name.")
async def main(admin: Admin, out: Output, broker: str | None, cluster: str | None, subject: str) -> None:
    """Show what a user may do and what not."""
    rows = []
    for address in await targets(admin, broker, cluster):
        acl = await users.acl_of(admin, address, subject)
        rows += users.entries(address, [acl] if acl is not None else [])
    out.table(users.ENTRY_COLUMNS, rows)
