"""brokerConsumeStats: how far all groups of one broker are."""

import click
import msgspec

from batonmq.admin.command import command
from batonmq.admin.output import Output
from batonmq.admin.session import Admin
from batonmq.protocol.bodies.clients import GroupList
from batonmq.protocol.bodies.common import TopicList
from batonmq.protocol.bodies.statistics import ConsumeStats
from batonmq.protocol.headers.broker.admin import (
    GetConsumeStats,
    QueryTopicConsumeByWho,
    QueryTopicsByConsumer,
)
from batonmq.protocol.headers.broker.topics import GetAllTopicConfig
from batonmq.protocol.json import decode


@command("brokerConsumeStats")
@click.option("-b", "--brokerAddr", "broker", required=True, help="Broker, host:port.")
@click.option("-l", "--level", type=int, default=0, show_default=True, help="Only queues this far behind.")
async def main(admin: Admin, out: Output, broker: str, level: int) -> None:
    """Show how far a broker's queues are consumed.

    One row for every queue and group that consumes it.
    """
    topics = await admin.ask(broker, GetAllTopicConfig())
    names = sorted(msgspec.json.decode(bytes(topics.body), type=_Topics).topic_config_table)
    groups: set[str] = set()
    for topic in names:
        answer = await admin.ask(broker, QueryTopicConsumeByWho(topic=topic))
        groups |= set(decode(bytes(answer.body), GroupList).group_list)
    rows = []
    for group in sorted(groups):
        consumed = await admin.ask(broker, QueryTopicsByConsumer(group=group))
        for topic in sorted(decode(bytes(consumed.body), TopicList).topic_list):
            header = GetConsumeStats(consumer_group=group, topic=topic)
            answer = await admin.ask(broker, header)
            for queue, at in sorted(decode(bytes(answer.body), ConsumeStats).offset_table.items()):
                behind = at.broker_offset - at.consumer_offset
                if behind >= level:
                    row = [topic, group, queue.queue_id, at.broker_offset, at.consumer_offset, behind]
                    rows.append(row)
    out.table(["topic", "group", "queueId", "brokerOffset", "consumerOffset", "diff"], rows)


class _Topics(msgspec.Struct, rename="camel"):
    topic_config_table: dict[str, msgspec.Raw]
