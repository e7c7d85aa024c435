"""resetOffsetByTime: have a group consume again from a time on, or skip ahead."""

import click

from batonmq.admin.command import command, topic_option
from batonmq.admin.output import Output
from batonmq.admin.session import Admin, AdminError
from batonmq.admin.times import TIME, parse_time
from batonmq.protocol.bodies.clients import ResetOffsetBody
from batonmq.protocol.headers.broker import admin as wire
from batonmq.protocol.json import decode


@command("resetOffsetByTime")
@click.option("-g", "--group", "group", required=True, help="Consumer group.")
@topic_option
@click.option("-s", "--timestamp", required=True, help=f"{TIME}.")
@click.option(
    "-f",
    "--force",
    type=bool,
    default=True,
    show_default=True,
    help="Also where the group has not come so far yet.",
)
@click.option("-b", "--broker", "broker", help="Only this broker, host:port.")
@click.option("-q", "--queue", "queue_id", type=int, default=-1, help="Only this queue.")
@click.option("-o", "--offset", type=int, default=-1, help="To this offset of the queue.")
async def main(
    admin: Admin,
    out: Output,
    group: str,
    topic: str,
    timestamp: str,
    force: bool,
    broker: str | None,
    queue_id: int,
    offset: int,
) -> None:
    """Move a group to a point in time.

    The group then consumes the topic from the first message stored at that time; "now" skips everything.

    \b
      batonmq admin resetOffsetByTime -n 127.0.0.1:9876 -g billing -t orders -s 2026-01-31#08:00:00:000
    """
    if (queue_id >= 0 or offset >= 0) and broker is None:
        raise AdminError("-q and -o need -b with the broker that has the queue")
    header = wire.ResetOffset(
        group=group,
        topic=topic,
        timestamp=parse_time(timestamp),
        is_force=force,
        queue_id=queue_id,
        offset=None if offset < 0 else offset,
    )
    brokers = [broker] if broker else list((await admin.masters_of_topic(topic)).values())
    rows = []
    for address in brokers:
        answer = await admin.ask(address, header)
        for queue, target in sorted(decode(bytes(answer.body), ResetOffsetBody).offset_table.items()):
            rows.append([queue.broker_name, queue.queue_id, target])
    out.table(["broker", "queueId", "offset"], rows)
