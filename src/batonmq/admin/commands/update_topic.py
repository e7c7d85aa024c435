"""updateTopic: create a topic, or change its queues, permissions and attributes."""

import click

from batonmq.admin.command import broker_option, command, masters_option, targets, topic_option
from batonmq.admin.operations import brokers, namesrv, topics
from batonmq.admin.output import Output
from batonmq.admin.session import Admin, naming


@command("updateTopic")
@broker_option
@masters_option
@topic_option
@click.option(
    "-r", "--readQueueNums", "read", type=int, default=8, show_default=True, help="Number of queues to read."
)
@click.option(
    "-w",
    "--writeQueueNums",
    "write",
    type=int,
    default=8,
    show_default=True,
    help="Number of queues to write.",
)
@click.option(
    "-p", "--perm", type=click.IntRange(0, 7), default=6, show_default=True, help="2 write, 4 read, 6 both."
)
@click.option("-o", "--order", type=bool, default=False, show_default=True, help="Ordered topic.")
@click.option("-u", "--unit", type=bool, default=False, help="Topic of a unit (RocketMQ's units).")
@click.option("-s", "--hasUnitSub", "unit_sub", type=bool, default=False, help="Has unit subscriptions.")
@click.option(
    "-a", "--attributes", help="Attributes to set and remove, e.g. +message.type=FIFO,-reserve.time."
)
async def main(
    admin: Admin,
    out: Output,
    broker: str | None,
    cluster: str | None,
    topic: str,
    read: int,
    write: int,
    perm: int,
    order: bool,
    unit: bool,
    unit_sub: bool,
    attributes: str | None,
) -> None:
    """Create a topic, or change it.

    On one broker with -b, on all masters of a cluster with -c. What is not given is set to its default. With
    -o true the name servers also get the topic's order configuration: its queues at that broker, or at all
    broker sets of the cluster. Clients see it if the name servers have orderMessageEnable=true.

    \b
      batonmq admin updateTopic -n 127.0.0.1:9876 -c DefaultCluster -t orders -r 8 -w 8
    """
    addresses = await targets(admin, broker, cluster)
    names: list[str] = []  # found first: if that fails, nothing is changed
    if order and broker:
        names = [await brokers.name_of(admin, broker)]
    elif order:
        names = [group.broker_name for group in await admin.groups(cluster)]
    await topics.create(
        admin,
        addresses,
        topic,
        read_queues=read,
        write_queues=write,
        perm=perm,
        order=order,
        unit=unit,
        unit_subscriptions=unit_sub,
        attributes=attributes,
    )
    text = f"topic {topic} is at {', '.join(addresses)}"
    if not order:
        out.done(text, topic=topic, brokers=addresses)
        return
    with naming([text]):
        queues = dict.fromkeys(names, write)
        value = await namesrv.put_order(admin, topic, queues, keep_others=broker is not None)
    out.done(f"{text}, in the order {value}", topic=topic, brokers=addresses, orderConfiguration=value)
