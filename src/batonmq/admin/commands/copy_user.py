"""copyUser: copy users from one broker to another."""

import click

from batonmq.admin.command import addresses, command, names
from batonmq.admin.operations import users
from batonmq.admin.output import Output
from batonmq.admin.session import Admin


@command("copyUser")
@click.option("-f", "--fromBroker", "source", required=True, callback=addresses, help="Copy from, host:port.")
@click.option("-t", "--toBroker", "target", required=True, callback=addresses, help="Copy to, host:port.")
@click.option("-u", "--usernames", "given", callback=names, help="Only these users, comma separated.")
async def main(admin: Admin, out: Output, source: str, target: str, given: list[str]) -> None:
    """Copy users from one broker to another.

    With their secrets. One that is there already is changed.
    """
    copied = await users.copy_users(admin, source, target, given)
    out.table(["user"], [[name] for name in copied], title=f"copied from {source} to {target}")
