"""getConsumerStatus: the offsets that the connected clients of a group have reached."""

import click

from batonmq.admin.command import command, topic_option
from batonmq.admin.operations import offsets
from batonmq.admin.output import Output
from batonmq.admin.session import Admin


@command("getConsumerStatus")
@click.option("-g", "--group", "group", required=True, help="Consumer group.")
@topic_option
@click.option("-i", "--originClientId", "client_id", help="Only this client.")
async def main(admin: Admin, out: Output, group: str, topic: str, client_id: str | None) -> None:
    """Show how far each connected client is.

    The clients themselves say it; consumerProgress shows what they have committed.

    \b
      batonmq admin getConsumerStatus -n 127.0.0.1:9876 -g billing -t orders
    """
    found = await offsets.of_clients(admin, group, topic, client_id)
    rows = [
        [client, queue.broker_name, queue.queue_id, offset]
        for client, queues in sorted(found.items())
        for queue, offset in sorted(queues.items(), key=lambda item: (item[0].broker_name, item[0].queue_id))
    ]
    out.table(["clientId", "broker", "queueId", "offset"], rows)
