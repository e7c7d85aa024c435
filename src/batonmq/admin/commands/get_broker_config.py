"""getBrokerConfig: the configuration brokers run with."""

from batonmq.admin.command import broker_option, cluster_option, command, targets
from batonmq.admin.operations import brokers
from batonmq.admin.output import Output
from batonmq.admin.session import Admin


@command("getBrokerConfig")
@broker_option
@cluster_option
async def main(admin: Admin, out: Output, broker: str | None, cluster: str | None) -> None:
    """Show every configuration key of brokers.

    Of one broker with -b, of all brokers of a cluster side by side with -c.
    """
    addresses = await targets(admin, broker, cluster, slaves=True)
    out.side_by_side("key", await brokers.configs(admin, addresses))
