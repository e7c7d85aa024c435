"""topicStatus: offsets of a topic's queues."""

import click

from batonmq.admin.command import command, topic_option
from batonmq.admin.output import Output, time_text
from batonmq.admin.session import Admin
from batonmq.protocol.bodies.statistics import TopicStatsTable
from batonmq.protocol.headers.broker import admin as wire
from batonmq.protocol.json import decode


@command("topicStatus")
@topic_option
@click.option("-c", "--cluster", "cluster", help="Only brokers of this cluster.")
async def main(admin: Admin, out: Output, topic: str, cluster: str | None) -> None:
    """Show the offsets of a topic's queues.

    First and next offset, and the time of the last message.
    """
    brokers = await admin.masters_of_topic(topic)
    if cluster is not None:
        members = {group.broker_name for group in await admin.groups(cluster)}
        brokers = {name: address for name, address in brokers.items() if name in members}
    rows = []
    for name, address in sorted(brokers.items()):
        answer = await admin.ask(address, wire.GetTopicStatsInfo(topic=topic))
        table = decode(bytes(answer.body), TopicStatsTable).offset_table
        for queue, offsets in sorted(table.items()):
            updated = time_text(offsets.last_update_timestamp)
            rows.append([name, queue.queue_id, offsets.min_offset, offsets.max_offset, updated])
    out.table(["broker", "queueId", "minOffset", "maxOffset", "lastUpdated"], rows)
