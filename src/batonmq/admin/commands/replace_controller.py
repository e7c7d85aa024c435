"""replaceController: put a new controller in the place of another."""

import click

from batonmq.admin.command import command, controller_option, id_option, raft_option, rpc_option, wait_option
from batonmq.admin.operations import controllers
from batonmq.admin.output import Output
from batonmq.admin.session import Admin


@command("replaceController")
@controller_option
@click.option("-o", "--oldId", "old", required=True, help="Id of the one to replace, dead or alive.")
@id_option
@raft_option
@rpc_option
@wait_option
async def main(
    admin: Admin, out: Output, controller: str, old: str, node_id: str, raft: str, rpc: str, wait_s: float
) -> None:
    """Put a new controller in the place of another.

    As addController for the new one, then removeController for the old one; in the other order where the new
    one has the old one's address. If the command is broken off, give it again.

    \b
      batonmq admin replaceController -a 127.0.0.1:9877 -o n2 -i n3 -r 127.0.0.1:9880
    """
    was_member = await controllers.replace(admin, controller, old, node_id, raft, rpc, wait_s)
    what = f"in the place of {old}" if was_member else f"({old} was not a member)"
    out.done(f"{node_id} at {raft} is a voter {what}", id=node_id, raftAddress=raft, old=old)
