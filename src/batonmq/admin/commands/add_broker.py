"""addBroker: start a broker in a container."""

import click

from batonmq.admin.command import command, container_option
from batonmq.admin.operations import containers
from batonmq.admin.output import Output
from batonmq.admin.session import Admin


@command("addBroker")
@container_option
@click.option(
    "-b", "--brokerConfigPath", "path", required=True, help="The broker's file, on the container's disk."
)
async def main(admin: Admin, out: Output, container: str, path: str) -> None:
    """Start a broker in a broker container.

    The broker serves when the command returns. It is gone after a restart of the container unless
    brokerConfigPaths of the container's file names it, too.

    \b
      batonmq admin addBroker -c 127.0.0.1:10811 -b /etc/batonmq/broker-b.conf --timeout 60000
    """
    await containers.add(admin, container, path)
    out.done(f"add broker to {container} success", container=container, file=path)
