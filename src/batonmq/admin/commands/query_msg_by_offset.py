"""queryMsgByOffset: the message at an offset of a queue."""

import click

from batonmq.admin.command import command, not_needed, topic_option
from batonmq.admin.commands.query_msg_by_id import show
from batonmq.admin.operations import messages
from batonmq.admin.output import Output
from batonmq.admin.session import Admin
from batonmq.protocol.bodies.common import MessageQueue


@command("queryMsgByOffset")
@topic_option
@click.option("-b", "--brokerName", "broker", required=True, help="Broker name.")
@click.option("-i", "--queueId", "queue_id", type=int, required=True, help="Queue id.")
@click.option("-o", "--offset", type=int, required=True, help="Queue offset.")
@not_needed("-f", "--bodyFormat")
async def main(admin: Admin, out: Output, topic: str, broker: str, queue_id: int, offset: int) -> None:
    """Show the message at an offset of a queue."""
    queue = MessageQueue(topic=topic, broker_name=broker, queue_id=queue_id)
    show(out, [await messages.by_queue_offset(admin, queue, offset)])
