"""getBrokerConfig: the configuration brokers run with."""

from batonmq.admin.command import broker_option, cluster_option, command
from batonmq.admin.output import Output
from batonmq.admin.session import Admin
from batonmq.common.config import parse_properties
from batonmq.protocol.headers.broker import admin as wire


@command("getBrokerConfig")
@broker_option
@cluster_option
async def main(admin: Admin, out: Output, broker: str | None, cluster: str | None) -> None:
    """Show every configuration key of brokers.

    Of one broker with -b, of all brokers of a cluster side by side with -c.
    """
    configs: dict[str, dict[str, str]] = {}
    for address in await admin.targets(broker, cluster, slaves=True):
        answer = await admin.ask(address, wire.GetBrokerConfig())
        configs[address] = parse_properties(bytes(answer.body).decode())
    keys = sorted({key for config in configs.values() for key in config})
    out.table(["key", *configs], [[key, *(c.get(key, "") for c in configs.values())] for key in keys])
