"""deleteUser: delete a user."""

from batonmq.admin.command import broker_option, cluster_option, command, targets, user_option
from batonmq.admin.operations import users
from batonmq.admin.output import Output
from batonmq.admin.session import Admin


@command("deleteUser")
@broker_option
@cluster_option
@user_option
async def main(admin: Admin, out: Output, broker: str | None, cluster: str | None, name: str) -> None:
    """Delete a user and its access control list."""
    addresses = await targets(admin, broker, cluster, slaves=True)
    await users.delete(admin, addresses, name)
    out.done(f"user {name} is gone from {', '.join(addresses)}", user=name, brokers=addresses)
