"""sendMsgStatus: send messages to one broker and show each answer."""

import click

from batonmq.admin.command import command
from batonmq.admin.commands.check_msg_send_rt import show
from batonmq.admin.operations import messages
from batonmq.admin.output import Output
from batonmq.admin.session import Admin


@command("sendMsgStatus")
@click.option("-b", "--brokerName", "broker", required=True, help="Broker name; also the name of a topic.")
@click.option(
    "-s",
    "--messageSize",
    "size",
    type=click.IntRange(1, 4 << 20),
    default=128,
    show_default=True,
    help="Size of each message, bytes.",
)
@click.option(
    "-c",
    "--count",
    type=click.IntRange(1, 1_000_000),
    default=50,
    show_default=True,
    help="Number of messages.",
)
async def main(admin: Admin, out: Output, broker: str, size: int, count: int) -> None:
    """Time sends to a broker.

    The messages go to the topic that each broker offers under its own name (brokerTopicEnable).

    \b
      batonmq admin sendMsgStatus -n 127.0.0.1:9876 -b broker-a -c 10
    """
    show(out, [sent async for sent in messages.timed_sends(admin, broker, count, size)])
