"""resetMasterFlushOffset: what a slave takes for its master's flushed offset."""

import click

from batonmq.admin.command import addresses, command
from batonmq.admin.operations import replication
from batonmq.admin.output import Output
from batonmq.admin.session import Admin


@command("resetMasterFlushOffset")
@click.option("-b", "--brokerAddr", "broker", required=True, callback=addresses, help="The slave, host:port.")
@click.option("-o", "--offset", required=True, type=click.IntRange(0), help="Commit log offset.")
async def main(admin: Admin, out: Output, broker: str, offset: int) -> None:
    """Set a slave's idea of the flushed offset.

    It is what the slave takes for its master's flushed offset.
    """
    await replication.reset_master_flush_offset(admin, broker, offset)
    out.done(f"{broker} has the master's flush offset {offset}", broker=broker, offset=offset)
