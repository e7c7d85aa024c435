"""brokerStatus: the figures of running brokers."""

from batonmq.admin.command import broker_option, cluster_option, command
from batonmq.admin.output import Output
from batonmq.admin.session import Admin
from batonmq.protocol.bodies.common import KVTable
from batonmq.protocol.headers.broker import admin as wire
from batonmq.protocol.json import decode


@command("brokerStatus")
@broker_option
@cluster_option
async def main(admin: Admin, out: Output, broker: str | None, cluster: str | None) -> None:
    """Show every figure of brokers.

    Of one broker with -b, of all brokers of a cluster side by side with -c.
    """
    figures: dict[str, dict[str, str]] = {}
    for address in await admin.targets(broker, cluster, slaves=True):
        answer = await admin.ask(address, wire.GetBrokerRuntimeInfo())
        figures[address] = decode(bytes(answer.body), KVTable).table
    keys = sorted({key for table in figures.values() for key in table})
    rows = [[key, *(table.get(key, "") for table in figures.values())] for key in keys]
    out.table(["figure", *figures], rows)
