"""updateBrokerConfig: change a key of running brokers."""

import click

from batonmq.admin.command import broker_option, cluster_option, command
from batonmq.admin.output import Output
from batonmq.admin.session import Admin
from batonmq.protocol.headers import broker as wire


@command("updateBrokerConfig")
@broker_option
@cluster_option
@click.option("-a", "--updateAllBroker", "every", type=bool, default=False, help="With -c: slaves too.")
@click.option("-k", "--key", required=True, help="Key, as in the file.")
@click.option("-v", "--value", required=True, help="Value.")
async def main(
    admin: Admin, out: Output, broker: str | None, cluster: str | None, every: bool, key: str, value: str
) -> None:
    """Change one key of one broker or of a cluster's masters while they run; refused if it cannot change."""
    targets = await admin.targets(broker, cluster, slaves=every)
    for address in targets:
        await admin.ask(address, wire.UpdateBrokerConfig(), f"{key}={value}\n".encode())
    out.done(f"{key}={value} at {', '.join(targets)}", key=key, value=value, brokers=targets)
