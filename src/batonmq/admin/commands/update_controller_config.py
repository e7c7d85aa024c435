"""updateControllerConfig: change a key of running controllers."""

import click

from batonmq.admin.command import command, controller_option
from batonmq.admin.operations import controllers
from batonmq.admin.output import Output
from batonmq.admin.session import Admin


@command("updateControllerConfig")
@controller_option
@click.option("-k", "--key", required=True, help="Key, as in the file.")
@click.option("-v", "--value", required=True, help="Value.")
async def main(admin: Admin, out: Output, controller: str, key: str, value: str) -> None:
    """Change a key of running controllers."""
    addresses = await controllers.change_config(admin, controller, key, value)
    out.done(f"{key}={value} at {', '.join(addresses)}", key=key, value=value, controllers=addresses)
