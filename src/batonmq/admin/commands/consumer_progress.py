"""consumerProgress: how far consumer groups are."""

import click

from batonmq.admin.command import command
from batonmq.admin.operations import groups
from batonmq.admin.output import Output, time_text
from batonmq.admin.session import Admin


@command("consumerProgress")
@click.option("-g", "--groupName", "group", help="Show this group, queue by queue; default: all groups.")
@click.option("-t", "--topicName", "topic", help="Only this topic.")
@click.option("-c", "--cluster", "cluster", help="Only brokers of this cluster.")
async def main(admin: Admin, out: Output, group: str | None, topic: str | None, cluster: str | None) -> None:
    """Show how far consumer groups are behind.

    Without -g every group in one row, with -g one group queue by queue: `diff` is the backlog.
    """
    if group is not None:
        columns = [
            "topic",
            "broker",
            "queueId",
            "brokerOffset",
            "consumerOffset",
            "diff",
            "inflight",
            "lastTime",
        ]
        rows: list[list[object]] = [
            [
                at.topic,
                at.broker,
                at.queue_id,
                at.broker_offset,
                at.consumer_offset,
                at.behind,
                at.in_flight,
                time_text(at.last_stored_ms),
            ]
            for at in await groups.progress(admin, group, topic, cluster)
        ]
    else:
        columns = ["group", "count", "model", "tps", "diffTotal"]
        rows = [
            [each.group, each.clients, each.model or "" if each.online else "OFFLINE", each.tps, each.behind]
            for each in await groups.all_progress(admin, topic, cluster)
        ]
    out.table(columns, rows)
