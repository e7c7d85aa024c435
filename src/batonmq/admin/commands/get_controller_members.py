"""getControllerMembers: who belongs to the controllers' Raft group."""

from batonmq.admin.command import command, controller_option
from batonmq.admin.operations import controllers
from batonmq.admin.output import Output
from batonmq.admin.session import Admin


@command("getControllerMembers")
@controller_option
async def main(admin: Admin, out: Output, controller: str) -> None:
    """Show the members of the controllers' Raft group.

    Their roles, whether they answer the leader, how many log entries they are behind, and which version of
    BatonMQ they run; 0.1.0 does not say it. Without a leader the first controller that answers says what it
    knows.
    """
    found = await controllers.members(admin, controller)
    versions = await controllers.versions(admin, found)
    rows = [
        [m.controller_id, m.raft_address, m.rpc_address, m.role, m.answers, m.lag, versions[m.controller_id]]
        for m in found.members
    ]
    source = "as the leader knows it" if found.leader_id == found.answered_by else "no leader is known"
    change = "" if found.settled else ", a change is under way"
    out.table(
        ["id", "raftAddress", "rpcAddress", "role", "answers", "lag", "version"],
        rows,
        title=f"{found.group}, term {found.term}, by {found.answered_by}: {source}{change}",
    )
