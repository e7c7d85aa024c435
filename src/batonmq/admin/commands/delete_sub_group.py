"""deleteSubGroup: delete a consumer group."""

import click

from batonmq.admin.command import broker_option, command, group_option, masters_option, targets
from batonmq.admin.commands.delete_topic import note_kept
from batonmq.admin.operations import groups
from batonmq.admin.output import Output
from batonmq.admin.session import Admin, naming


@command("deleteSubGroup")
@broker_option
@masters_option
@group_option
@click.option("-r", "--removeOffset", "remove", type=bool, default=False, help="Also forget its offsets.")
async def main(
    admin: Admin, out: Output, broker: str | None, cluster: str | None, group: str, remove: bool
) -> None:
    """Delete a consumer group.

    From one broker with -b, from all masters of a cluster with -c. With -c also the topics of its retries and
    dead letters.
    """
    addresses = await targets(admin, broker, cluster)
    await groups.delete(admin, addresses, group, with_offsets=remove)
    text = f"group {group} deleted at {', '.join(addresses)}"
    if broker or not cluster:
        out.done(text, group=group, brokers=addresses)
        return
    with naming([text]):
        deleted = await groups.delete_topics(admin, group, cluster)
    out.done(f"{text}, with {' and '.join(deleted)}", group=group, brokers=addresses, topics=list(deleted))
    for topic, each in deleted.items():
        note_kept(out, topic, each.kept)
