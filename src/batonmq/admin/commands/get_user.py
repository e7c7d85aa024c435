"""getUser: one user."""

from batonmq.admin.command import broker_option, command, masters_option, targets, user_option
from batonmq.admin.operations import users
from batonmq.admin.output import Output
from batonmq.admin.session import Admin, AdminError


@command("getUser")
@broker_option
@masters_option
@user_option
async def main(admin: Admin, out: Output, broker: str | None, cluster: str | None, name: str) -> None:
    """Show type and status of a user.

    Its secret is not shown.
    """
    addresses = await targets(admin, broker, cluster)
    found = [
        (address, user)
        for address in addresses
        if (user := await users.find(admin, address, name)) is not None
    ]
    if not found:
        raise AdminError(f"no user {name} at {', '.join(addresses)}: listUser shows all")
    rows = [[address, user.username, user.user_type, user.user_status] for address, user in found]
    out.table(["brokerAddress", "user", "type", "status"], rows)
