"""getControllerMetaData: who leads the controllers."""

from batonmq.admin.command import command, controller_option
from batonmq.admin.operations import controllers
from batonmq.admin.output import Output
from batonmq.admin.session import Admin
from batonmq.common.addresses import split_addresses


@command("getControllerMetaData")
@controller_option
async def main(admin: Admin, out: Output, controller: str) -> None:
    """Show who leads the controllers.

    And the name of their Raft group, and its members.
    """
    meta = await controllers.metadata(admin, controller)
    out.facts(
        {
            "ControllerGroup": meta.group,
            "ControllerLeaderId": meta.controller_leader_id,
            "ControllerLeaderAddress": meta.controller_leader_address,
            "Peers": split_addresses(meta.peers),
        }
    )
