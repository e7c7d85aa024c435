"""queryMsgByUniqueKey: find a message by the id its producer gave it."""

import click

from batonmq.admin.command import command, topic_option
from batonmq.admin.commands.query_msg_by_id import show
from batonmq.admin.operations import messages
from batonmq.admin.output import Output
from batonmq.admin.session import Admin, AdminError


@command("queryMsgByUniqueKey")
@click.option("-i", "--msgId", "message_id", required=True, help="Unique message id.")
@topic_option
@click.option("-a", "--showAll", "every", is_flag=True, help="Also duplicates.")
async def main(admin: Admin, out: Output, message_id: str, topic: str, every: bool) -> None:
    """Show the message with a unique id.

    The id is the producer's; a message that was sent twice is stored twice.
    """
    found = await messages.by_unique_id(admin, topic, message_id)
    if not found:
        raise AdminError(f"no message with the id {message_id} in {topic}")
    show(out, found if every else found[-1:])
