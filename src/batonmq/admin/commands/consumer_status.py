"""consumerStatus: what the connected clients of a group are doing."""

import click

from batonmq.admin.command import command
from batonmq.admin.operations import groups
from batonmq.admin.output import Output, time_text
from batonmq.admin.session import Admin
from batonmq.protocol.bodies.clients import ConsumerRunningInfo
from batonmq.protocol.names import retry_topic


@command("consumerStatus")
@click.option("-g", "--consumerGroup", "group", required=True, help="Consumer group.")
@click.option("-i", "--clientId", "client_id", help="Only this client, in full.")
@click.option("-b", "--brokerAddr", "broker", help="Ask this broker, host:port.")
@click.option(
    "-s", "--jstack", is_flag=True, help="Also the stacks of the client's threads and tasks; with -i."
)
async def main(
    admin: Admin, out: Output, group: str, client_id: str | None, broker: str | None, jstack: bool
) -> None:
    """Show the state inside the clients of a group.

    Without -i one line for each client, and whether all have the same subscriptions, as they must.

    \b
      batonmq admin consumerStatus -n 127.0.0.1:9876 -g billing
    """
    address = broker or await admin.a_broker_of(retry_topic(group))
    if client_id is not None:
        show(out, await groups.running_info(admin, group, client_id, address, jstack=jstack), client_id)
        return
    connected = await groups.consumers(admin, group, address)
    infos = {
        each.client_id: await groups.running_info(admin, group, each.client_id, address)
        for each in sorted(connected.connection_set, key=lambda each: each.client_id)
    }
    subscriptions = {
        frozenset((each.topic, each.sub_string) for each in info.subscription_set) for info in infos.values()
    }
    columns = ["clientId", "queues", "cachedMessages", "startTime", "sameSubscriptions"]
    rows = [
        [
            client,
            len(info.mq_table) + len(info.mq_pop_table),
            sum(queue.cached_msg_count for queue in info.mq_table.values())
            + sum(queue.wait_ack_count for queue in info.mq_pop_table.values()),
            started(info),
            len(subscriptions) == 1,
        ]
        for client, info in infos.items()
    ]
    out.table(columns, rows)


def started(info: ConsumerRunningInfo) -> str:
    """When the client started, as it says."""
    text = info.properties.get("PROP_CONSUMER_START_TIMESTAMP", "")
    return time_text(int(text)) if text.isascii() and text.isdigit() and len(text) < 15 else text


def show(out: Output, info: ConsumerRunningInfo, client: str) -> None:
    """All that one client says."""
    queues = [
        {
            "topic": queue.topic,
            "broker": queue.broker_name,
            "queueId": queue.queue_id,
            "commitOffset": at.commit_offset,
            "cachedMessages": at.cached_msg_count,
            "locked": at.locked,
            "lastPullTime": time_text(at.last_pull_timestamp),
            "lastConsumeTime": time_text(at.last_consume_timestamp),
        }
        for queue, at in sorted(
            info.mq_table.items(), key=lambda item: (item[0].topic, item[0].broker_name, item[0].queue_id)
        )
    ]
    pops = [
        {
            "topic": queue.topic,
            "broker": queue.broker_name,
            "queueId": "all" if queue.queue_id < 0 else queue.queue_id,
            "unacknowledged": at.wait_ack_count,
            "lastPopTime": time_text(at.last_pop_timestamp),
        }
        for queue, at in sorted(
            info.mq_pop_table.items(), key=lambda item: (item[0].topic, item[0].broker_name, item[0].queue_id)
        )
    ]
    rates = [
        {
            "topic": topic,
            "pullRT": at.pull_rt,
            "pullTPS": at.pull_tps,
            "consumeRT": at.consume_rt,
            "consumeOKTPS": at.consume_ok_tps,
            "consumeFailedTPS": at.consume_failed_tps,
            "failedInAnHour": at.consume_failed_msgs,
        }
        for topic, at in sorted(info.status_table.items())
    ]
    subscriptions = {each.topic: each.sub_string for each in info.subscription_set}
    if out.as_json:
        everything = {"clientId": client, "properties": info.properties, "subscriptions": subscriptions}
        out.facts({**everything, "queues": queues, "pops": pops, "rates": rates, "jstack": info.jstack})
        return
    out.facts({"clientId": client, **dict(sorted(info.properties.items()))})
    out.table(
        ["topic", "expression"],
        [[topic, expression] for topic, expression in sorted(subscriptions.items())],
        title="\nSubscriptions",
    )
    for title, rows in (("\nQueues", queues), ("\nPopped", pops), ("\nRates", rates)):
        if rows:
            out.table(list(rows[0]), [list(row.values()) for row in rows], title=title)
    if info.jstack:
        out.facts({"stacks": info.jstack}, title="")
