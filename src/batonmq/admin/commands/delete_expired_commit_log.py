"""deleteExpiredCommitLog: delete old commit log files now."""

from batonmq.admin.command import broker_option, cluster_option, command
from batonmq.admin.output import Output
from batonmq.admin.session import Admin
from batonmq.protocol.headers.broker import admin as wire


@command("deleteExpiredCommitLog")
@broker_option
@cluster_option
async def main(admin: Admin, out: Output, broker: str | None, cluster: str | None) -> None:
    """Delete expired commit log files now.

    Brokers look for them by themselves at their hour (deleteWhen).
    """
    targets = await admin.targets(broker, cluster, slaves=True)
    for address in targets:
        await admin.ask(address, wire.DeleteExpiredCommitLog())
    out.done(f"expired files deleted at {', '.join(targets)}", brokers=targets)
