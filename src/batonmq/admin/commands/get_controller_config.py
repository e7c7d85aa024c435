"""getControllerConfig: the configuration controllers run with."""

from batonmq.admin.command import command, controller_option
from batonmq.admin.operations import controllers
from batonmq.admin.output import Output
from batonmq.admin.session import Admin


@command("getControllerConfig")
@controller_option
async def main(admin: Admin, out: Output, controller: str) -> None:
    """Show every configuration key of controllers."""
    out.side_by_side("key", await controllers.configs(admin, controller))
