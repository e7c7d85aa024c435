"""brokerStatus: the figures of running brokers."""

from batonmq.admin.command import broker_option, cluster_option, command, targets
from batonmq.admin.operations import brokers
from batonmq.admin.output import Output
from batonmq.admin.session import Admin


@command("brokerStatus")
@broker_option
@cluster_option
async def main(admin: Admin, out: Output, broker: str | None, cluster: str | None) -> None:
    """Show every figure of brokers.

    Of one broker with -b, of all brokers of a cluster side by side with -c.
    """
    addresses = await targets(admin, broker, cluster, slaves=True)
    out.side_by_side("figure", await brokers.figures(admin, addresses))
