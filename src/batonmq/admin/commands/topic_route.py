"""topicRoute: where a topic is."""

import click

from batonmq.admin.command import command, topic_option
from batonmq.admin.operations import topics
from batonmq.admin.output import Output
from batonmq.admin.session import Admin


@command("topicRoute")
@topic_option
@click.option("-l", "--list", is_flag=True, expose_value=False, help="Not needed: a list is shown anyway.")
async def main(admin: Admin, out: Output, topic: str) -> None:
    """Show brokers, queues and permissions of a topic.

    As the name server gives them to clients.
    """
    rows = [
        [
            queues.cluster,
            queues.broker,
            queues.read_queues,
            queues.write_queues,
            queues.perm,
            ", ".join(f"{broker_id}={address}" for broker_id, address in queues.addresses.items()),
        ]
        for queues in await topics.route(admin, topic)
    ]
    out.table(["cluster", "broker", "readQueues", "writeQueues", "perm", "addresses"], rows)
