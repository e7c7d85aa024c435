"""listUser: users."""

import click

from batonmq.admin.command import broker_option, command, masters_option, targets
from batonmq.admin.operations import users
from batonmq.admin.output import Output
from batonmq.admin.session import Admin


@command("listUser")
@broker_option
@masters_option
@click.option("-f", "--filter", "part", help="Only users whose name contains this.")
async def main(admin: Admin, out: Output, broker: str | None, cluster: str | None, part: str | None) -> None:
    """List users with type and status."""
    rows = [
        [address, user.username, user.user_type, user.user_status]
        for address in await targets(admin, broker, cluster)
        for user in await users.users(admin, address, part)
    ]
    out.table(["brokerAddress", "user", "type", "status"], rows)
