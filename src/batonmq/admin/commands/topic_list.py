"""topicList: all topics the name server knows."""

import click

from batonmq.admin.command import command
from batonmq.admin.output import Output
from batonmq.admin.session import Admin
from batonmq.protocol.bodies.clients import GroupList
from batonmq.protocol.bodies.common import TopicList
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers import namesrv as namesrv_wire
from batonmq.protocol.headers.broker import admin as wire
from batonmq.protocol.json import decode


@command("topicList")
@click.option(
    "-c", "--clusterModel", "with_clusters", is_flag=True, help="Also clusters and consumer groups."
)
async def main(admin: Admin, out: Output, with_clusters: bool) -> None:
    """List all topics.

    With -c also the clusters that have them and the groups that consume them.
    """
    answer = await admin.ask_namesrv(namesrv_wire.GetAllTopicList())
    topics = sorted(decode(bytes(answer.body), TopicList).topic_list)
    if not with_clusters:
        out.table(["topic"], [[topic] for topic in topics])
        return
    rows: list[list[str]] = []
    for topic in topics:
        try:
            route = await admin.route(topic)
        except MQError:  # a topic without a broker right now
            rows.append([topic, "", ""])
            continue
        groups: set[str] = set()
        for address in (await admin.masters_of_topic(topic)).values():
            consumers = await admin.ask(address, wire.QueryTopicConsumeByWho(topic=topic))
            groups |= set(decode(bytes(consumers.body), GroupList).group_list)
        for cluster in sorted({group.cluster for group in route.broker_datas}):
            rows += [[cluster, topic, group] for group in sorted(groups) or [""]]
    out.table(["cluster", "topic", "consumerGroup"], rows)
