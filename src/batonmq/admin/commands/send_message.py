"""sendMessage: send one message."""

import click

from batonmq.admin.command import command, not_needed, topic_option
from batonmq.admin.operations import messages
from batonmq.admin.output import Output
from batonmq.admin.session import Admin, AdminError
from batonmq.client.message import Message
from batonmq.protocol.bodies.common import MessageQueue


@command("sendMessage")
@topic_option
@click.option("-p", "--body", required=True, help="Text of the message.")
@click.option("-k", "--key", help="Key to find it by.")
@click.option("-c", "--tags", help="Tag.")
@click.option("-b", "--broker", "broker", help="Broker name; with -i.")
@click.option("-i", "--qid", "queue_id", type=int, help="Queue id; with -b.")
@not_needed("-m", "--msgTraceEnable", bool)
async def main(
    admin: Admin,
    out: Output,
    topic: str,
    body: str,
    key: str | None,
    tags: str | None,
    broker: str | None,
    queue_id: int | None,
) -> None:
    """Send one message.

    And show where it was stored.
    """
    if (broker is None) != (queue_id is None):
        raise AdminError("-b and -i belong together")
    queue = None
    if broker is not None and queue_id is not None:
        queue = MessageQueue(topic=topic, broker_name=broker, queue_id=queue_id)
    message = Message(topic, body.encode(), tags=tags, keys=[key] if key else ())
    sent = await messages.send(admin, message, queue)
    row = [sent.queue.broker_name, sent.queue.queue_id, sent.queue_offset, sent.message_id]
    out.table(["broker", "queueId", "queueOffset", "msgId"], [row])
