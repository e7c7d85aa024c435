"""allocateMQ: how the queues of a topic would be shared between clients."""

import click

from batonmq.admin.command import command, names, topic_option
from batonmq.admin.operations import topics
from batonmq.admin.output import Output
from batonmq.admin.session import Admin


@command("allocateMQ")
@topic_option
@click.option("-i", "--ipList", "clients", required=True, callback=names, help="Clients, comma separated.")
async def main(admin: Admin, out: Output, topic: str, clients: list[str]) -> None:
    """Show how clients would share the queues.

    The queues of a topic are shared evenly in the clients' order, as consumers do by default.
    """
    rows = [
        [client, queue.broker_name, queue.queue_id]
        for client, queues in (await topics.shares(admin, topic, clients)).items()
        for queue in queues
    ]
    out.table(["client", "broker", "queueId"], rows)
