"""addController: take a new controller into a running Raft group."""

from batonmq.admin.command import command, controller_option, id_option, raft_option, rpc_option, wait_option
from batonmq.admin.operations import controllers
from batonmq.admin.output import Output
from batonmq.admin.session import Admin


@command("addController")
@controller_option
@id_option
@raft_option
@rpc_option
@wait_option
async def main(
    admin: Admin, out: Output, controller: str, node_id: str, raft: str, rpc: str, wait_s: float
) -> None:
    """Take a new controller into a running Raft group.

    Start it first, with an empty directory, an id that no member ever had, and
    controllerJoinRunningGroup=true. It receives all that is known and votes once it has caught up. If the
    command is broken off, give it again.

    \b
      batonmq admin addController -a 127.0.0.1:9877 -i n3 -r 127.0.0.1:9880
    """
    await controllers.add(admin, controller, node_id, raft, rpc, wait_s)
    out.done(f"{node_id} at {raft} is a voter", id=node_id, raftAddress=raft)
