"""listAcl: what users may do."""

import click

from batonmq.admin.command import broker_option, command, masters_option, targets
from batonmq.admin.operations import users
from batonmq.admin.output import Output
from batonmq.admin.session import Admin


@command("listAcl")
@broker_option
@masters_option
@click.option("-s", "--subject", "subject_part", help="Only subjects that contain this.")
@click.option("-r", "--resource", "resource_part", help="Only entries whose resource contains this.")
async def main(
    admin: Admin,
    out: Output,
    broker: str | None,
    cluster: str | None,
    subject_part: str | None,
    resource_part: str | None,
) -> None:
    """List what users may do and what not."""
    rows = []
    for address in await targets(admin, broker, cluster):
        rows += users.entries(address, await users.acls(admin, address, subject_part, resource_part))
    out.table(users.ENTRY_COLUMNS, rows)
