"""createAcl: give or deny rights."""

from batonmq.admin.acl_options import rights_options
from batonmq.admin.command import command, targets
from batonmq.admin.operations import users
from batonmq.admin.output import Output
from batonmq.admin.session import Admin


@command("createAcl")
@rights_options
async def main(
    admin: Admin,
    out: Output,
    broker: str | None,
    cluster: str | None,
    subject: str,
    resources: list[str],
    actions: list[str],
    source_ips: list[str],
    decision: str,
) -> None:
    """Allow a user actions on topics and groups.

    Or deny them, with -d Deny. Cluster:name stands for what concerns whole brokers.

    An entry for a resource that has one already replaces it. Of several entries that match a request, the
    most exact one counts.
    """
    addresses = await targets(admin, broker, cluster, slaves=True)
    await users.allow(admin, addresses, subject, resources, actions, source_ips, decision)
    out.done(f"{subject} has its rights at {', '.join(addresses)}", subject=subject, brokers=addresses)
