"""statsAll: rates of topics and of the groups that consume them."""

import click

from batonmq.admin.command import command
from batonmq.admin.operations import topics
from batonmq.admin.output import Output
from batonmq.admin.session import Admin


@command("statsAll")
@click.option("-a", "--activeTopic", "active", is_flag=True, help="Only topics with traffic.")
@click.option("-t", "--topic", "only", help="Only this topic.")
async def main(admin: Admin, out: Output, active: bool, only: str | None) -> None:
    """Show rates and backlog by topic and group.

    Messages a second in and out, and of the last day.
    """
    rows = [
        [t.topic, t.group or "", t.behind, t.in_tps, t.out_tps, t.in_day, t.out_day]
        for t in await topics.traffic(admin, only)
        if t.active or not active
    ]
    out.table(["topic", "group", "behind", "inTps", "outTps", "in24h", "out24h"], rows)
