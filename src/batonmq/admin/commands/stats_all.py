"""statsAll: rates of topics and of the groups that consume them."""

import click

from batonmq.admin.command import command
from batonmq.admin.output import Output
from batonmq.admin.session import Admin
from batonmq.protocol.bodies.clients import GroupList
from batonmq.protocol.bodies.common import TopicList
from batonmq.protocol.bodies.statistics import GROUP_GET_NUMS, TOPIC_PUT_NUMS, BrokerStatsData, ConsumeStats
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers import namesrv as namesrv_wire
from batonmq.protocol.headers.broker import admin as wire
from batonmq.protocol.json import decode
from batonmq.protocol.names import DLQ_PREFIX, RETRY_PREFIX


@command("statsAll")
@click.option("-a", "--activeTopic", "active", is_flag=True, help="Only topics with traffic.")
@click.option("-t", "--topic", "only", help="Only this topic.")
async def main(admin: Admin, out: Output, active: bool, only: str | None) -> None:
    """Show rates and backlog by topic and group.

    Messages a second in and out, and of the last day.
    """
    answer = await admin.ask_namesrv(namesrv_wire.GetAllTopicList())
    rows = []
    for topic in sorted(decode(bytes(answer.body), TopicList).topic_list):
        if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)) or only not in (None, topic):
            continue
        try:
            brokers = list((await admin.masters_of_topic(topic)).values())
        except MQError:  # a topic without a broker right now
            continue
        groups: set[str] = set()
        for address in brokers:
            found = await admin.ask(address, wire.QueryTopicConsumeByWho(topic=topic))
            groups |= set(decode(bytes(found.body), GroupList).group_list)
        in_tps, in_day = await _counter(admin, brokers, TOPIC_PUT_NUMS, topic)
        for group in sorted(groups) or [""]:
            out_tps, out_day, behind = 0.0, 0, 0
            if group:
                out_tps, out_day = await _counter(admin, brokers, GROUP_GET_NUMS, f"{topic}@{group}")
                behind = await _behind(admin, brokers, topic, group)
            if not active or in_day or out_day or in_tps or out_tps:
                rows.append([topic, group, behind, in_tps, out_tps, in_day, out_day])
    out.table(["topic", "group", "behind", "inTps", "outTps", "in24h", "out24h"], rows)


async def _counter(admin: Admin, brokers: list[str], name: str, key: str) -> tuple[float, int]:
    rate, day = 0.0, 0
    for address in brokers:
        try:
            answer = await admin.ask(address, wire.ViewBrokerStatsData(stats_name=name, stats_key=key))
        except MQError:  # a broker that has counted nothing yet has no such statistic
            continue
        data = decode(bytes(answer.body), BrokerStatsData)
        rate += data.stats_minute.tps
        day += next((w.sum for w in (data.stats_day, data.stats_hour, data.stats_minute) if w.sum), 0)
    return rate, day


async def _behind(admin: Admin, brokers: list[str], topic: str, group: str) -> int:
    behind = 0
    for address in brokers:
        answer = await admin.ask(address, wire.GetConsumeStats(consumer_group=group, topic=topic))
        queues = decode(bytes(answer.body), ConsumeStats).offset_table.values()
        behind += sum(queue.broker_offset - queue.consumer_offset for queue in queues)
    return behind
