"""updateControllerConfig: change a key of running controllers."""

import click

from batonmq.admin.command import command, controller_option
from batonmq.admin.output import Output
from batonmq.admin.session import Admin
from batonmq.common.addresses import split_addresses
from batonmq.protocol.headers import controller as wire


@command("updateControllerConfig")
@controller_option
@click.option("-k", "--key", required=True, help="Key, as in the file.")
@click.option("-v", "--value", required=True, help="Value.")
async def main(admin: Admin, out: Output, controller: str, key: str, value: str) -> None:
    """Change a key of running controllers."""
    addresses = split_addresses(controller)
    for address in addresses:
        await admin.ask(address, wire.UpdateControllerConfig(), f"{key}={value}\n".encode())
    out.done(f"{key}={value} at {', '.join(addresses)}", key=key, value=value, controllers=addresses)
