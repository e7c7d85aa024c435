"""queryMsgByUniqueKey: find a message by the id its producer gave it."""

import click

from batonmq.admin.command import command, not_needed, topic_option
from batonmq.admin.commands.query_msg_by_id import check_direct, consume_directly, show
from batonmq.admin.operations import messages
from batonmq.admin.output import Output
from batonmq.admin.session import Admin, AdminError


@command("queryMsgByUniqueKey")
@click.option("-i", "--msgId", "message_id", required=True, help="Unique message id.")
@topic_option
@click.option("-a", "--showAll", "every", is_flag=True, help="Also duplicates.")
@click.option("-g", "--consumerGroup", "group", help="Have a client of this group handle it; with -d.")
@click.option("-d", "--clientId", "client_id", help="The client; consumerConnection shows its id.")
@not_needed("-c", "--cluster")
async def main(
    admin: Admin,
    out: Output,
    message_id: str,
    topic: str,
    every: bool,
    group: str | None,
    client_id: str | None,
) -> None:
    """Show the message with a unique id.

    The id is the producer's; a message that was sent twice is stored twice. With -g and -d a connected push
    consumer handles it now, whether or not it has before, and no offset moves.
    """
    check_direct(group, client_id)
    found = await messages.by_unique_id(admin, topic, message_id)
    if not found:
        raise AdminError(f"no message with the id {message_id} in {topic}")
    chosen = found if every else found[-1:]
    if group and client_id:
        await consume_directly(admin, out, chosen, group, client_id)
        return
    show(out, chosen)
