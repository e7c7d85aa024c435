"""updateUser: change a user."""

import click

from batonmq.admin.command import (
    broker_option,
    cluster_option,
    command,
    targets,
    typed_if_empty,
    user_option,
    user_type_option,
)
from batonmq.admin.operations import users
from batonmq.admin.output import Output
from batonmq.admin.session import Admin, AdminError
from batonmq.protocol.bodies.auth import UserInfo


@command("updateUser")
@broker_option
@cluster_option
@user_option
@click.option(
    "-p",
    "--password",
    is_flag=False,
    flag_value="",
    callback=typed_if_empty,
    help="Its new secret. With -p alone the command asks for it, so that no list of processes shows it.",
)
@user_type_option
@click.option(
    "-s",
    "--userStatus",
    "status",
    type=click.Choice(["enable", "disable"], case_sensitive=False),
    help="Its new status.",
)
async def main(
    admin: Admin,
    out: Output,
    broker: str | None,
    cluster: str | None,
    name: str,
    password: str | None,
    kind: str | None,
    status: str | None,
) -> None:
    """Change secret, type or status of a user.

    A disabled user keeps its rights, but no request of it is answered.
    """
    if not (password or kind or status):
        raise AdminError("give what is to change: -p, -t or -s")
    addresses = await targets(admin, broker, cluster, slaves=True)
    info = UserInfo(username=name, password=password, user_type=kind, user_status=status)
    await users.update(admin, addresses, info)
    out.done(f"user {name} is changed at {', '.join(addresses)}", user=name, brokers=addresses)
