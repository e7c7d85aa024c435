"""resetOffsetByTime: have a group consume again from a time on, or skip ahead."""

from datetime import datetime

import click

from batonmq.admin.command import command, topic_option
from batonmq.admin.output import Output
from batonmq.admin.session import Admin, AdminError
from batonmq.protocol.bodies import ResetOffsetBody, decode
from batonmq.protocol.headers import broker as wire


@command("resetOffsetByTime")
@click.option("-g", "--group", "group", required=True, help="Consumer group.")
@topic_option
@click.option("-s", "--timestamp", required=True, help="now, ms since 1970, or yyyy-MM-dd#HH:mm:ss:SSS.")
@click.option("-f", "--force", type=bool, default=True, show_default=True, help="Also forwards.")
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
    """Reset a group's offsets in a topic to a time ("now" skips everything)."""
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


def parse_time(text: str) -> int:
    """``now`` is -1; else ms since 1970 or mqadmin's date form in local time. Raises `AdminError`."""
    if text == "now":
        return -1
    if text.lstrip("-").isdigit():
        return int(text)
    for form in ("%Y-%m-%d#%H:%M:%S:%f", "%Y-%m-%d#%H:%M:%S", "%Y-%m-%d"):
        try:
            return int(datetime.strptime(text, form).timestamp() * 1000)
        except ValueError:
            continue
    raise AdminError(f"no time: {text}; write now, ms since 1970, or yyyy-MM-dd#HH:mm:ss:SSS")
