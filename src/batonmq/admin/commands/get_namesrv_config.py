"""getNamesrvConfig: the configuration name servers run with."""

from batonmq.admin.command import command
from batonmq.admin.operations import namesrv
from batonmq.admin.output import Output
from batonmq.admin.session import Admin


@command("getNamesrvConfig")
async def main(admin: Admin, out: Output) -> None:
    """Show every configuration key of name servers."""
    out.side_by_side("key", await namesrv.configs(admin))
