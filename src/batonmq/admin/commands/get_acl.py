"""getAcl: what one user may do."""

import click

from batonmq.admin.command import broker_option, command, masters_option, targets
from batonmq.admin.operations import users
from batonmq.admin.output import Output
from batonmq.admin.session import Admin, AdminError


@command("getAcl")
@broker_option
@masters_option
@click.option("-s", "--subject", required=True, help="Whose rights, User:name.")
async def main(admin: Admin, out: Output, broker: str | None, cluster: str | None, subject: str) -> None:
    """Show what a user may do and what not."""
    addresses, rows, found = await targets(admin, broker, cluster), [], False
    for address in addresses:
        acl = await users.acl_of(admin, address, subject)
        if acl is not None:
            found = True
            rows += users.entries(address, [acl])
    if not found:
        raise AdminError(f"{subject} has no list at {', '.join(addresses)}: listAcl shows all")
    out.table(users.ENTRY_COLUMNS, rows)
