"""createAcl: give or deny rights."""

import click

from batonmq.admin.command import broker_option, cluster_option, command, names, targets
from batonmq.admin.operations import users
from batonmq.admin.output import Output
from batonmq.admin.session import Admin


@command("createAcl")
@broker_option
@cluster_option
@click.option("-s", "--subject", required=True, help="Whose rights, User:name.")
@click.option(
    "-r",
    "--resources",
    required=True,
    callback=names,
    help="Topic:name, Group:prefix*, Cluster:*, or *; a comma between several.",
)
@click.option(
    "-a",
    "--actions",
    required=True,
    callback=names,
    help="Pub, Sub, Create, Update, Delete, Get, List or All; a comma between several.",
)
@click.option("-i", "--sourceIp", "source_ips", callback=names, help="Only from these addresses or networks.")
@click.option("-d", "--decision", required=True, help="Allow or Deny.")
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
