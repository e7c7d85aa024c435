"""updateTopic: create a topic, or change its queues, permissions and attributes."""

import click

from batonmq.admin.command import broker_option, command, masters_option, topic_option
from batonmq.admin.output import Output
from batonmq.admin.session import Admin
from batonmq.protocol.bodies.topics import SINGLE_TAG
from batonmq.protocol.codes import TopicSysFlag
from batonmq.protocol.headers.broker import topics as wire


@command("updateTopic")
@broker_option
@masters_option
@topic_option
@click.option(
    "-r", "--readQueueNums", "read", type=int, default=8, show_default=True, help="Queues that are read."
)
@click.option(
    "-w", "--writeQueueNums", "write", type=int, default=8, show_default=True, help="Queues that are written."
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

    On one broker with -b, on all masters of a cluster with -c. What is not given is set to its default.

    \b
      batonmq admin updateTopic -n 127.0.0.1:9876 -c DefaultCluster -t orders -r 8 -w 8
    """
    header = wire.CreateTopic(
        topic=topic,
        default_topic="TBW102",
        read_queue_nums=read,
        write_queue_nums=write,
        perm=perm,
        topic_filter_type=SINGLE_TAG,
        topic_sys_flag=TopicSysFlag.UNIT * unit + TopicSysFlag.UNIT_SUB * unit_sub,
        order=order,
        attributes=attributes,
    )
    targets = await admin.targets(broker, cluster)
    for address in targets:
        await admin.ask(address, header)
    out.done(f"topic {topic} is at {', '.join(targets)}", topic=topic, brokers=targets)
