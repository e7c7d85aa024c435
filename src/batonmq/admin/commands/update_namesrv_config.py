"""updateNamesrvConfig: change a key of running name servers."""

import click

from batonmq.admin.command import command
from batonmq.admin.operations import namesrv
from batonmq.admin.output import Output
from batonmq.admin.session import Admin


@command("updateNamesrvConfig")
@click.option("-k", "--key", required=True, help="Key, as in the file.")
@click.option("-v", "--value", required=True, help="Value.")
async def main(admin: Admin, out: Output, key: str, value: str) -> None:
    """Change a key of running name servers."""
    await namesrv.change_config(admin, key, value)
    out.done(f"{key}={value} at {', '.join(admin.namesrv)}", key=key, value=value)
