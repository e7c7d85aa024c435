"""consumerProgress: how far consumer groups are."""

import click

from batonmq.admin.command import command
from batonmq.admin.output import Output, time_text
from batonmq.admin.session import Admin
from batonmq.protocol.bodies.clients import ConsumerConnection
from batonmq.protocol.bodies.common import TopicList
from batonmq.protocol.bodies.statistics import ConsumeStats
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers import namesrv as namesrv_wire
from batonmq.protocol.headers.broker import admin as wire
from batonmq.protocol.json import decode
from batonmq.protocol.names import RETRY_PREFIX, retry_topic


@command("consumerProgress")
@click.option("-g", "--groupName", "group", help="One group, queue by queue; without: all groups.")
@click.option("-t", "--topicName", "topic", help="Only this topic.")
@click.option("-c", "--cluster", "cluster", help="Only brokers of this cluster.")
async def main(admin: Admin, out: Output, group: str | None, topic: str | None, cluster: str | None) -> None:
    """Show how far consumer groups are behind.

    Without -g every group in one row, with -g one group queue by queue: `diff` is the backlog.
    """
    if group is not None:
        await _one(admin, out, group, topic, cluster)
        return
    answer = await admin.ask_namesrv(namesrv_wire.GetAllTopicList())
    topics = decode(bytes(answer.body), TopicList).topic_list
    rows = []
    for name in sorted(t.removeprefix(RETRY_PREFIX) for t in topics if t.startswith(RETRY_PREFIX)):
        stats = await _stats(admin, name, topic, cluster)
        queues = [at for table in stats.values() for at in table.offset_table.values()]
        connection = await _connection(admin, name, cluster)
        rows.append(
            [
                name,
                len(connection.connection_set) if connection else 0,
                str(connection.message_model or "") if connection else "OFFLINE",
                sum(table.consume_tps for table in stats.values()),
                sum(at.broker_offset - at.consumer_offset for at in queues),
            ]
        )
    out.table(["group", "count", "model", "tps", "diffTotal"], rows)


async def _one(admin: Admin, out: Output, group: str, topic: str | None, cluster: str | None) -> None:
    rows = []
    for name, table in (await _stats(admin, group, topic, cluster)).items():
        for queue, at in sorted(table.offset_table.items()):
            rows.append(
                [
                    queue.topic,
                    name,
                    queue.queue_id,
                    at.broker_offset,
                    at.consumer_offset,
                    at.broker_offset - at.consumer_offset,
                    at.pull_offset - at.consumer_offset,
                    time_text(at.last_timestamp),
                ]
            )
    if not rows:
        about = f"group {group}" if topic is None else f"group {group} and topic {topic}"
        raise MQError(
            ResponseCode.CONSUMER_NOT_ONLINE, f"no offsets are known of {about}: nothing was consumed yet"
        )
    columns = ["topic", "broker", "queueId", "brokerOffset", "consumerOffset", "diff", "inflight", "lastTime"]
    out.table(columns, sorted(rows))


async def _brokers(admin: Admin, group: str, topic: str | None, cluster: str | None) -> dict[str, str]:
    if cluster is not None:
        return await admin.masters(cluster)
    try:
        return await admin.masters_of_topic(topic or retry_topic(group))
    except MQError as error:
        if error.code != ResponseCode.TOPIC_NOT_EXIST or topic is not None:
            raise
        return await admin.masters()  # a group that never sent a heartbeat has no retry topic


async def _stats(admin: Admin, group: str, topic: str | None, cluster: str | None) -> dict[str, ConsumeStats]:
    stats: dict[str, ConsumeStats] = {}
    for name, address in (await _brokers(admin, group, topic, cluster)).items():
        answer = await admin.ask(address, wire.GetConsumeStats(consumer_group=group, topic=topic))
        stats[name] = decode(bytes(answer.body), ConsumeStats)
    return stats


async def _connection(admin: Admin, group: str, cluster: str | None) -> ConsumerConnection | None:
    for address in (await _brokers(admin, group, None, cluster)).values():
        try:
            answer = await admin.ask(address, wire.GetConsumerConnectionList(consumer_group=group))
        except MQError as error:
            if error.code != ResponseCode.CONSUMER_NOT_ONLINE:
                raise
            continue
        return decode(bytes(answer.body), ConsumerConnection)
    return None
