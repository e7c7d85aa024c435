"""replaceController: put a new controller in the place of another."""

import click

from batonmq.admin import controllers
from batonmq.admin.command import command, controller_option
from batonmq.admin.output import Output
from batonmq.admin.session import Admin


@command("replaceController")
@controller_option
@click.option("-o", "--oldId", "old", required=True, help="Id of the one to replace, dead or alive.")
@controllers.id_option
@controllers.raft_option
@controllers.rpc_option
@controllers.wait_option
async def main(
    admin: Admin, out: Output, controller: str, old: str, node_id: str, raft: str, rpc: str, wait_s: float
) -> None:
    """Put a new controller in the place of another.

    As addController for the new one, then removeController for the old one; in the other order where the new
    one has the old one's address. If the command is broken off, give it again.

    \b
      batonmq admin replaceController -a 127.0.0.1:9877 -o n2 -i n3 -r 127.0.0.1:9880
    """
    known = await controllers.members(admin, controller)
    addresses = {each.controller_id: each.raft_address for each in known.members}
    if addresses.get(old) == raft:
        await controllers.remove(admin, controller, old, wait_s)
    await controllers.add(admin, controller, node_id, raft, rpc, wait_s)
    await controllers.remove(admin, controller, old, wait_s)
    out.done(f"{node_id} at {raft} is a voter in the place of {old}", id=node_id, raftAddress=raft, old=old)
