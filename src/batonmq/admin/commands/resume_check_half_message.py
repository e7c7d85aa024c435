"""resumeCheckHalfMessage: check a transaction again that was given up."""

import click

from batonmq.admin.command import command
from batonmq.admin.operations import transactions
from batonmq.admin.output import Output
from batonmq.admin.session import Admin, AdminError
from batonmq.protocol.message.errors import MessageFormatError


@command("resumeCheckHalfMessage")
@click.option("-i", "--msgId", "message_id", required=True, help="Offset message id of the half message.")
@click.option("-t", "--topic", help="Topic of the half message; ignored.")
@click.option("-b", "--brokerAddr", "address", help="The present master, if the id names another broker.")
async def main(admin: Admin, out: Output, message_id: str, topic: str | None, address: str | None) -> None:
    """Check a transaction again that was given up.

    After transactionCheckMax checks a half message is moved to TRANS_CHECK_MAX_TIME_TOPIC. This puts it back,
    and its producer group is asked again.

    Example: batonmq admin printMsg -n 127.0.0.1:9876 -t TRANS_CHECK_MAX_TIME_TOPIC, then batonmq admin
    resumeCheckHalfMessage -n 127.0.0.1:9876 -i 7F00000100002A9F0000000000000D1C
    """
    message_id = message_id.strip()
    try:
        address = await transactions.resume_check(admin, message_id, topic, address=address)
    except MessageFormatError as error:
        raise AdminError(
            f"{error}; give the offset id, which queryMsgByUniqueKey shows as offsetMsgId"
        ) from None
    out.done(f"broker {address} checks {message_id} again")
