"""brokerConsumeStats: how far all groups of one broker are."""

import click

from batonmq.admin.command import command, not_needed
from batonmq.admin.operations import groups
from batonmq.admin.output import Output
from batonmq.admin.session import Admin


@command("brokerConsumeStats")
@click.option("-b", "--brokerAddr", "broker", required=True, help="Broker, host:port.")
@click.option("-l", "--level", type=int, default=0, show_default=True, help="Only queues this far behind.")
@not_needed("-t", "--timeoutMillis", int, "As --timeout, ms; not needed here.")
@not_needed("-o", "--order", bool)
async def main(admin: Admin, out: Output, broker: str, level: int) -> None:
    """Show how far a broker's queues are consumed.

    One row for every queue and group that consumes it.
    """
    rows = [
        [at.topic, at.group, at.queue_id, at.broker_offset, at.consumer_offset, at.behind]
        for at in await groups.progress_at(admin, broker)
        if at.behind >= level
    ]
    out.table(["topic", "group", "queueId", "brokerOffset", "consumerOffset", "diff"], rows)
