"""removeBroker: stop a broker of a container."""

import click

from batonmq.admin.command import command, container_option
from batonmq.admin.operations import containers
from batonmq.admin.output import Output
from batonmq.admin.session import Admin, AdminError


@command("removeBroker")
@container_option
@click.option(
    "-b",
    "--brokerIdentity",
    "identity",
    required=True,
    help="clusterName:brokerName:brokerId, as in its file.",
)
async def main(admin: Admin, out: Output, container: str, identity: str) -> None:
    """Stop a broker of a broker container.

    It leaves the name servers and answers what is under way. All acknowledged messages are on its disk when
    the command returns.

    \b
      batonmq admin removeBroker -c 127.0.0.1:10811 -b DefaultCluster:broker-b:0
    """
    parts = [part.strip() for part in identity.split(":")]
    if len(parts) != 3 or not (parts[2].isascii() and parts[2].isdigit()) or int(parts[2]) >= 1 << 63:
        raise AdminError(f"{identity!r} is not a broker; write clusterName:brokerName:brokerId")
    await containers.remove(admin, container, parts[0], parts[1], int(parts[2]))
    out.done(f"remove broker from {container} success", container=container, broker=identity)
