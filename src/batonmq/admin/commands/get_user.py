"""getUser: one user."""

from batonmq.admin.command import broker_option, command, masters_option, targets, user_option
from batonmq.admin.operations import users
from batonmq.admin.output import Output
from batonmq.admin.session import Admin


@command("getUser")
@broker_option
@masters_option
@user_option
async def main(admin: Admin, out: Output, broker: str | None, cluster: str | None, name: str) -> None:
    """Show type and status of a user.

    Its secret is not shown.
    """
    found = [
        (address, user)
        for address in await targets(admin, broker, cluster)
        if (user := await users.find(admin, address, name)) is not None
    ]
    rows = [[address, user.username, user.user_type, user.user_status] for address, user in found]
    out.table(["brokerAddress", "user", "type", "status"], rows)
