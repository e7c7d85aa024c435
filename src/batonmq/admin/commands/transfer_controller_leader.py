"""transferControllerLeader: make another controller the leader."""

from batonmq.admin.command import command, controller_option, id_option, wait_option
from batonmq.admin.operations import controllers
from batonmq.admin.output import Output
from batonmq.admin.session import Admin


@command("transferControllerLeader")
@controller_option
@id_option
@wait_option
async def main(admin: Admin, out: Output, controller: str, node_id: str, wait_s: float) -> None:
    """Make another controller the leader.

    No master changes by this; requests that come meanwhile wait for some milliseconds.
    """
    await controllers.transfer(admin, controller, node_id, wait_s)
    out.done(f"{node_id} leads the controllers", id=node_id)
