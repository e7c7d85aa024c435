"""deleteAcl: take rights away."""

import click

from batonmq.admin.command import broker_option, cluster_option, command, targets
from batonmq.admin.operations import users
from batonmq.admin.output import Output
from batonmq.admin.session import Admin


@command("deleteAcl")
@broker_option
@cluster_option
@click.option("-s", "--subject", required=True, help="Whose rights, User:name.")
@click.option("-r", "--resources", "resource", help="Only the entry for this resource.")
async def main(
    admin: Admin, out: Output, broker: str | None, cluster: str | None, subject: str, resource: str | None
) -> None:
    """Delete all rights of a user, or one entry.

    With -r only the entry for this resource, written as listAcl shows it.
    """
    addresses = await targets(admin, broker, cluster, slaves=True)
    await users.delete_acl(admin, addresses, subject, resource)
    what = f"the entry for {resource}" if resource else "the list"
    out.done(f"{what} of {subject} is gone from {', '.join(addresses)}", subject=subject, brokers=addresses)
