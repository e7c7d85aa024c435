"""producer: all producers that are connected to a broker."""

import click

from batonmq.admin.command import addresses, command
from batonmq.admin.operations import groups
from batonmq.admin.output import Output, time_text
from batonmq.admin.session import Admin


@command("producer")
@click.option("-b", "--broker", required=True, callback=addresses, help="The broker, host:port.")
async def main(admin: Admin, out: Output, broker: str) -> None:
    """Show all producers of a broker."""
    rows = [
        [group, p.client_id, p.remote_ip, p.language, p.version, time_text(p.last_update_timestamp)]
        for group, members in sorted((await groups.all_producers(admin, broker)).items())
        for p in members
    ]
    out.table(["group", "clientId", "address", "language", "version", "lastUpdate"], rows)
