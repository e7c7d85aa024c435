"""updateTopicPerm: change only the permissions of a topic."""

import click

from batonmq.admin.command import broker_option, command, masters_option, topic_option
from batonmq.admin.output import Output
from batonmq.admin.session import Admin
from batonmq.protocol.bodies.topics import TopicConfig
from batonmq.protocol.headers.broker import topics as wire
from batonmq.protocol.json import decode


@command("updateTopicPerm")
@broker_option
@masters_option
@topic_option
@click.option(
    "-p", "--perm", type=click.IntRange(0, 7), required=True, help="2 write, 4 read, 6 both, 0 neither."
)
async def main(
    admin: Admin, out: Output, broker: str | None, cluster: str | None, topic: str, perm: int
) -> None:
    """Allow or forbid reading and writing a topic.

    Everything else of it stays.
    """
    targets = await admin.targets(broker, cluster)
    for address in targets:
        answer = await admin.ask(address, wire.GetTopicConfig(topic=topic))
        config = decode(bytes(answer.body), TopicConfig)
        await admin.ask(
            address,
            wire.CreateTopic(
                topic=topic,
                default_topic="TBW102",
                read_queue_nums=config.read_queue_nums,
                write_queue_nums=config.write_queue_nums,
                perm=perm,
                topic_filter_type=config.topic_filter_type,
                topic_sys_flag=config.topic_sys_flag,
                order=config.order,
            ),
        )
    out.done(
        f"topic {topic} has perm {perm} at {', '.join(targets)}", topic=topic, perm=perm, brokers=targets
    )
