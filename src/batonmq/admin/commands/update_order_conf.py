"""updateOrderConf: the order configuration of a topic."""

import click

from batonmq.admin.command import command, topic_option
from batonmq.admin.operations import namesrv
from batonmq.admin.output import Output
from batonmq.admin.session import Admin, AdminError
from batonmq.protocol.names import ORDER_TOPIC_CONFIG


@command("updateOrderConf")
@topic_option
@click.option(
    "-m",
    "--method",
    required=True,
    type=click.Choice(["get", "put", "delete"]),
    help="What to do with it.",
)
@click.option("-v", "--orderConf", "value", help="For put: broker:queues;broker:queues.")
async def main(admin: Admin, out: Output, topic: str, method: str, value: str | None) -> None:
    """Show, set or delete the order of a topic.

    Name servers with orderMessageEnable=true give this configuration to clients, which then keep using these
    queues while a broker is away. updateTopic -o true sets it as well.

    \b
      batonmq admin updateOrderConf -n 127.0.0.1:9876 -t orders -m put -v 'broker-a:4;broker-b:4'
    """
    if method == "put":
        if not (value or "").strip():
            raise AdminError("put needs -v with broker:queues;broker:queues")
        value = str(value).strip()
        await namesrv.put_value(admin, ORDER_TOPIC_CONFIG, topic, value)
    elif method == "delete":
        await namesrv.delete_value(admin, ORDER_TOPIC_CONFIG, topic)
        out.done(f"topic {topic} has no order configuration", topic=topic, orderConfiguration=None)
        return
    else:
        value = await namesrv.value(admin, ORDER_TOPIC_CONFIG, topic)
    out.done(f"the order configuration of topic {topic} is {value}", topic=topic, orderConfiguration=value)
