"""setConsumeMode: whether a group pulls or pops a topic."""

import click

from batonmq.admin.command import broker_option, command, group_option, masters_option, targets
from batonmq.admin.operations import groups
from batonmq.admin.output import Output
from batonmq.admin.session import Admin
from batonmq.protocol.bodies.clients import MessageRequestMode


@command("setConsumeMode")
@broker_option
@masters_option
@click.option("-t", "--topic", "--topicName", "topic", required=True, help="Topic.")
@group_option
@click.option(
    "-m",
    "--mode",
    type=click.Choice([mode.value for mode in MessageRequestMode], case_sensitive=False),
    required=True,
    help="PULL: each client has its queues. POP: the broker hands out messages one by one.",
)
@click.option(
    "-q",
    "--popShareQueueNum",
    "share",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="With POP: number of other clients whose queues a client also pops; 0: all.",
)
async def main(
    admin: Admin,
    out: Output,
    broker: str | None,
    cluster: str | None,
    topic: str,
    group: str,
    mode: str,
    share: int,
) -> None:
    """Let a group pull or pop a topic.

    At one broker with -b, at all masters of a cluster with -c. Push consumers follow within 20 s if they
    leave the balance to the broker (setClientRebalance(false) in Java).

    \b
      batonmq admin setConsumeMode -c DefaultCluster -t orders -g billing -m POP
    """
    addresses = await targets(admin, broker, cluster)
    await groups.set_mode(admin, addresses, topic, group, MessageRequestMode(mode.upper()), share)
    out.done(
        f"group {group} consumes {topic} by {mode.upper()} at {', '.join(addresses)}",
        group=group,
        topic=topic,
        mode=mode.upper(),
        brokers=addresses,
    )
