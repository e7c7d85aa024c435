"""producerConnection: who is connected of a producer group."""

import click

from batonmq.admin.command import command, topic_option
from batonmq.admin.operations import groups
from batonmq.admin.output import Output
from batonmq.admin.session import Admin


@command("producerConnection")
@click.option("-g", "--producerGroup", "group", required=True, help="Producer group.")
@topic_option
async def main(admin: Admin, out: Output, group: str, topic: str) -> None:
    """Show the connected producers of a group.

    Asked at a broker of a topic that they send to.
    """
    rows = [
        [c.client_id, c.client_addr, c.language, c.version]
        for c in await groups.producers(admin, group, topic)
    ]
    out.table(["clientId", "address", "language", "version"], rows)
