"""createUser: create a user."""

import click

from batonmq.admin.command import (
    broker_option,
    cluster_option,
    command,
    given_or_typed,
    targets,
    user_option,
    user_type_option,
)
from batonmq.admin.operations import users
from batonmq.admin.output import Output
from batonmq.admin.session import Admin
from batonmq.protocol.bodies.auth import UserInfo


@command("createUser")
@broker_option
@cluster_option
@user_option
@click.option(
    "-p",
    "--password",
    callback=given_or_typed,
    help="Its secret. Without -p the command asks for it, so that no list of processes shows it.",
)
@user_type_option
async def main(
    admin: Admin,
    out: Output,
    broker: str | None,
    cluster: str | None,
    name: str,
    password: str,
    kind: str | None,
) -> None:
    """Create a user.

    On the broker set of one broker with -b, on all of a cluster with -c. A Super user may do everything, a
    Normal one what createAcl allows.
    """
    addresses = await targets(admin, broker, cluster, slaves=True)
    await users.create(admin, addresses, UserInfo(username=name, password=password, user_type=kind))
    out.done(f"user {name} is at {', '.join(addresses)}", user=name, brokers=addresses)
