"""exportMetadata: topics and consumer groups as a JSON file."""

import time
from pathlib import Path

import click

from batonmq.admin.command import broker_option, command, masters_option, targets
from batonmq.admin.commands.export_configs import EXPORTS, folder_option, write_json
from batonmq.admin.operations import exports
from batonmq.admin.output import Output
from batonmq.admin.session import Admin, AdminError


@command("exportMetadata")
@masters_option
@broker_option
@folder_option
@click.option("-t", "--topic", "only_topics", is_flag=True, help="Only topics, to topic.json.")
@click.option(
    "-g", "--subscriptionGroup", "only_groups", is_flag=True, help="Only groups, to subscriptionGroup.json."
)
@click.option(
    "-s", "--specialTopic", "special", is_flag=True, help="Also topics of retries and dead letters."
)
async def main(
    admin: Admin,
    out: Output,
    cluster: str | None,
    broker: str | None,
    folder: Path,
    only_topics: bool,
    only_groups: bool,
    special: bool,
) -> None:
    """Write topics and consumer groups to a file.

    Of one broker with -b and either -t or -g, of all masters of a cluster with -c: there the queues of a
    topic are added up. The file is metadata.json in the folder -f; topics and groups of the system are left
    out.
    """
    if broker and not only_topics and not only_groups:
        raise AdminError("with -b give -t for topics or -g for groups")
    addresses = await targets(admin, broker, cluster)
    found: dict[str, object] = {}
    if only_topics or not only_groups:
        found["topicConfigTable"] = await exports.topics(admin, addresses, special=special)
    if only_groups or not only_topics:
        found["subscriptionGroupTable"] = await exports.groups(admin, addresses)
    found["exportTime"] = int(time.time() * 1000)
    name = EXPORTS[only_topics, only_groups]
    write_json(out, folder / name, found)
