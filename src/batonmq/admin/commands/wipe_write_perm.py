"""wipeWritePerm: take a broker out of writing."""

import click

from batonmq.admin.command import command
from batonmq.admin.output import Output
from batonmq.admin.session import Admin
from batonmq.protocol.headers import namesrv as wire


@command("wipeWritePerm")
@click.option("-b", "--brokerName", "name", required=True, help="Broker name.")
async def main(admin: Admin, out: Output, name: str) -> None:
    """Stop producers from writing to a broker.

    On all name servers, e.g. before the broker is stopped; addWritePerm undoes it.
    """
    rows = []
    for address in admin.namesrv:
        answer = await admin.ask(address, wire.WipeWritePermOfBroker(broker_name=name))
        assert isinstance(answer.header, wire.WipeWritePermOfBrokerResponse)
        rows.append([address, name, answer.header.wipe_topic_count])
    out.table(["namesrv", "broker", "topicsWiped"], rows)
