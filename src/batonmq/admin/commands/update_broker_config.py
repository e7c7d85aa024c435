"""updateBrokerConfig: change a key of running brokers."""

import click

from batonmq.admin.command import broker_option, command, masters_option, targets
from batonmq.admin.operations import brokers
from batonmq.admin.output import Output
from batonmq.admin.session import Admin, AdminError
from batonmq.net.errors import NetError
from batonmq.protocol.errors import MQError


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
    addresses = await targets(admin, broker, cluster, slaves=every)
    await brokers.change_config(admin, addresses, key, value)
    left: list[str] = []
    if broker is None and not every:
        left = sorted({*await targets(admin, None, cluster, slaves=True)}.difference(addresses))
    text = f"{key}={value} at {', '.join(addresses)}"
    if left:
        text += f"; not at the slaves {', '.join(left)}, one of which may be the next master: -a true for all"
    out.done(text, key=key, value=value, brokers=addresses)
    if broker is not None:
        await _name_unchanged(admin, out, broker, key)


async def _name_unchanged(admin: Admin, out: Output, broker: str, key: str) -> None:
    """Say which replicas of the broker's set keep their value."""
    unknown = f"Only {broker} changed; other replicas of its broker set, if there are any, keep their {key}"
    try:
        others = await brokers.other_replicas(admin, broker)
    except (AdminError, NetError, MQError) as error:
        out.note(f"{unknown}. They cannot be listed: {error}")
        return
    if others is None:
        out.note(f"{unknown}. The name server does not know {broker}.")
    elif others:
        out.note(
            f"Only {broker} changed; the other replicas of its broker set keep their {key}: "
            f"{', '.join(others)}. One of them may be the next master. "
            "-c with -a true changes all brokers of a cluster."
        )
