"""producerConnection: who is connected of a producer group."""

import click

from batonmq.admin.command import command, topic_option
from batonmq.admin.output import Output
from batonmq.admin.session import Admin
from batonmq.protocol.bodies.clients import ProducerConnection
from batonmq.protocol.headers.broker import admin as wire
from batonmq.protocol.json import decode


@command("producerConnection")
@click.option("-g", "--producerGroup", "group", required=True, help="Producer group.")
@topic_option
async def main(admin: Admin, out: Output, group: str, topic: str) -> None:
    """Show the connected producers of a group.

    Asked at a broker of a topic that they send to.
    """
    broker = next(iter((await admin.masters_of_topic(topic)).values()))
    answer = await admin.ask(broker, wire.GetProducerConnectionList(producer_group=group))
    found = decode(bytes(answer.body), ProducerConnection).connection_set
    rows = [[c.client_id, c.client_addr, c.language, c.version] for c in found]
    out.table(["clientId", "address", "language", "version"], rows)
