"""addWritePerm: let a broker be written to again."""

import click

from batonmq.admin.command import command
from batonmq.admin.output import Output
from batonmq.admin.session import Admin
from batonmq.protocol.headers import namesrv as wire


@command("addWritePerm")
@click.option("-b", "--brokerName", "name", required=True, help="Broker name.")
async def main(admin: Admin, out: Output, name: str) -> None:
    """Let producers write to a broker again.

    The opposite of wipeWritePerm, on all name servers.
    """
    rows = []
    for address in admin.namesrv:
        answer = await admin.ask(address, wire.AddWritePermOfBroker(broker_name=name))
        assert isinstance(answer.header, wire.AddWritePermOfBrokerResponse)
        rows.append([address, name, answer.header.add_topic_count])
    out.table(["namesrv", "broker", "topicsAdded"], rows)
