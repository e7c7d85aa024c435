"""removeController: take a controller out of its Raft group."""

from batonmq.admin.command import command, controller_option, id_option, wait_option
from batonmq.admin.operations import controllers
from batonmq.admin.output import Output
from batonmq.admin.session import Admin, AdminError


@command("removeController")
@controller_option
@id_option
@wait_option
async def main(admin: Admin, out: Output, controller: str, node_id: str, wait_s: float) -> None:
    """Take a controller out of its Raft group.

    Dead or alive; a leader hands over first. Refused where the rest would have no majority that answers. Stop
    the controller afterwards: it no longer takes part, and says so in its log. Fails if there is no such
    member.
    """
    was_member = await controllers.remove(admin, controller, node_id, wait_s)
    known = await controllers.members(admin, controller)
    if not was_member:
        ids = ", ".join(each.controller_id for each in known.members)
        raise AdminError(f"{node_id} is not a member of {known.group}, whose members are {ids}")
    out.done(f"{node_id} is removed from {known.group}", id=node_id)
