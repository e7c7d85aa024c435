"""copyAcl: copy access control lists from one broker to another."""

import click

from batonmq.admin.command import addresses, command, names
from batonmq.admin.operations import users
from batonmq.admin.output import Output
from batonmq.admin.session import Admin


@command("copyAcl")
@click.option("-f", "--fromBroker", "source", required=True, callback=addresses, help="Copy from, host:port.")
@click.option("-t", "--toBroker", "target", required=True, callback=addresses, help="Copy to, host:port.")
@click.option("-s", "--subjects", "given", callback=names, help="Only these subjects, comma separated.")
async def main(admin: Admin, out: Output, source: str, target: str, given: list[str]) -> None:
    """Copy rights from one broker to another.

    The users must be there (copyUser). Other entries that they have there stay.
    """
    copied = await users.copy_acls(admin, source, target, given)
    out.table(["subject"], [[name] for name in copied], title=f"copied from {source} to {target}")
