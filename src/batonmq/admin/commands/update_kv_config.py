"""updateKvConfig: set a value in the name servers' key-value configuration."""

import click

from batonmq.admin.command import command
from batonmq.admin.operations import namesrv
from batonmq.admin.output import Output
from batonmq.admin.session import Admin


@command("updateKvConfig")
@click.option("-s", "--namespace", required=True, help="Namespace, e.g. ORDER_TOPIC_CONFIG.")
@click.option("-k", "--key", required=True, help="Key.")
@click.option("-v", "--value", required=True, help="Value.")
async def main(admin: Admin, out: Output, namespace: str, key: str, value: str) -> None:
    """Set a key-value pair of all name servers."""
    await namesrv.put_value(admin, namespace, key, value)
    out.done(f"{namespace} {key}={value}", namespace=namespace, key=key, value=value)
