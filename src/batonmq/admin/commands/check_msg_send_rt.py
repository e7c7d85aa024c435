"""checkMsgSendRT: how long sends to the queues of a topic take."""

from collections.abc import Sequence

import click

from batonmq.admin.command import command, topic_option
from batonmq.admin.operations import messages
from batonmq.admin.output import Output
from batonmq.admin.session import Admin, AdminError


@command("checkMsgSendRT")
@topic_option
@click.option(
    "-a",
    "--amount",
    "count",
    type=click.IntRange(1, 1_000_000),
    default=100,
    show_default=True,
    help="Number of messages.",
)
@click.option(
    "-s",
    "--size",
    type=click.IntRange(1, 4 << 20),
    default=128,
    show_default=True,
    help="Size of each message, bytes.",
)
async def main(admin: Admin, out: Output, topic: str, count: int, size: int) -> None:
    """Time sends to the queues of a topic.

    The messages are stored like any others: use a topic for tests.

    \b
      batonmq admin checkMsgSendRT -n 127.0.0.1:9876 -t test -a 20
    """
    queues = sorted((await admin.queues(topic)).write_queues)
    if not queues:
        raise AdminError(f"topic {topic} has no queue to write to")
    show(out, [sent async for sent in messages.timed_sends(admin, topic, count, size, queues)])


def show(out: Output, sends: Sequence[messages.TimedSend]) -> None:
    """One row for each send, and the mean without the first, which looks up the route and connects."""
    rows = [
        [
            sent.queue.broker_name if sent.queue else "",
            sent.queue.queue_id if sent.queue else "",
            sent.error or "SEND_OK",
            round(sent.ms, 2),
        ]
        for sent in sends
    ]
    out.table(["broker", "queueId", "result", "ms"], rows)
    if not out.as_json and len(sends) > 1:
        mean = sum(sent.ms for sent in sends[1:]) / (len(sends) - 1)
        out.facts({"mean ms without the first": round(mean, 2)}, title="")
