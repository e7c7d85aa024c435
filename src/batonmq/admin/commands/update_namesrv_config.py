"""updateNamesrvConfig: change a key of running name servers."""

import click

from batonmq.admin.command import command
from batonmq.admin.output import Output
from batonmq.admin.session import Admin
from batonmq.protocol.headers import namesrv as wire


@command("updateNamesrvConfig")
@click.option("-k", "--key", required=True, help="Key, as in the file.")
@click.option("-v", "--value", required=True, help="Value.")
async def main(admin: Admin, out: Output, key: str, value: str) -> None:
    """Change a key of running name servers."""
    for address in admin.namesrv:
        await admin.ask(address, wire.UpdateNamesrvConfig(), f"{key}={value}\n".encode())
    out.done(f"{key}={value} at {', '.join(admin.namesrv)}", key=key, value=value)
