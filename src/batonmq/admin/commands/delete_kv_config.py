"""deleteKvConfig: delete a key of the name servers' key-value configuration."""

import click

from batonmq.admin.command import command
from batonmq.admin.operations import namesrv
from batonmq.admin.output import Output
from batonmq.admin.session import Admin


@command("deleteKvConfig")
@click.option("-s", "--namespace", required=True, help="Namespace, e.g. ORDER_TOPIC_CONFIG.")
@click.option("-k", "--key", required=True, help="Key.")
async def main(admin: Admin, out: Output, namespace: str, key: str) -> None:
    """Delete a key-value pair of all name servers."""
    await namesrv.delete_value(admin, namespace, key)
    out.done(f"{namespace} {key} deleted", namespace=namespace, key=key)
