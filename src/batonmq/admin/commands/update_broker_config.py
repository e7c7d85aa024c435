"""updateBrokerConfig: change a key of running brokers."""

import click

from batonmq.admin.command import broker_option, command, masters_option
from batonmq.admin.output import Output
from batonmq.admin.session import Admin
from batonmq.protocol.headers.broker import admin as wire


@command("updateBrokerConfig")
@broker_option
@masters_option
@click.option("-a", "--updateAllBroker", "every", type=bool, default=False, help="With -c: slaves too.")
@click.option("-k", "--key", required=True, help="Key, as in the file.")
@click.option("-v", "--value", required=True, help="Value.")
async def main(
    admin: Admin, out: Output, broker: str | None, cluster: str | None, every: bool, key: str, value: str
) -> None:
    """Change a key of running brokers.

    Of one broker with -b, of a cluster's masters with -c. It is written to the broker's file as well, and
    refused if it cannot change while the broker runs.

    \b
      batonmq admin updateBrokerConfig -n 127.0.0.1:9876 -c DefaultCluster -k fileReservedTime -v 48
    """
    targets = await admin.targets(broker, cluster, slaves=every)
    for address in targets:
        await admin.ask(address, wire.UpdateBrokerConfig(), f"{key}={value}\n".encode())
    left: list[str] = []
    if broker is None and not every:
        left = sorted({*await admin.targets(None, cluster, slaves=True)}.difference(targets))
    text = f"{key}={value} at {', '.join(targets)}"
    if left:
        text += f"; not at the slaves {', '.join(left)}, one of which may be the next master: -a true for all"
    out.done(text, key=key, value=value, brokers=targets)
