"""queryCq: raw entries of a consume queue."""

import click

from batonmq.admin.command import command, topic_option
from batonmq.admin.output import Output
from batonmq.admin.session import Admin
from batonmq.protocol.bodies.statistics import QueryConsumeQueueResponseBody
from batonmq.protocol.headers.broker import pull as wire
from batonmq.protocol.json import decode


@command("queryCq")
@topic_option
@click.option("-q", "--queue", "queue_id", type=int, required=True, help="Queue id.")
@click.option("-i", "--index", type=int, required=True, help="Queue offset of the first entry.")
@click.option("-c", "--count", type=click.IntRange(1), default=10, show_default=True, help="So many entries.")
@click.option("-b", "--broker", "broker", help="Broker, host:port.")
@click.option("-g", "--consumer", "group", help="Also show this group's subscription.")
async def main(
    admin: Admin,
    out: Output,
    topic: str,
    queue_id: int,
    index: int,
    count: int,
    broker: str | None,
    group: str | None,
) -> None:
    """Show entries of a consume queue.

    Where in the commit log they point, and the hash of each message's tag.
    """
    address = broker or next(iter((await admin.masters_of_topic(topic)).values()))
    header = wire.QueryConsumeQueue(
        topic=topic, queue_id=queue_id, index=index, count=count, consumer_group=group
    )
    answer = await admin.ask(address, header)
    body = decode(bytes(answer.body), QueryConsumeQueueResponseBody)
    rows = [
        [index + at, entry.physic_offset, entry.physic_size, entry.tags_code]
        for at, entry in enumerate(body.queue_data)
    ]
    out.table(["index", "commitLogOffset", "size", "tagsCode"], rows)
