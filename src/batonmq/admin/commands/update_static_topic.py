"""updateStaticTopic: create a static topic, or give it more logical queues."""

from pathlib import Path

import click

from batonmq.admin.command import (
    brokers_option,
    clusters_option,
    command,
    force_option,
    map_file_option,
    topic_option,
)
from batonmq.admin.operations import static_topics, topics
from batonmq.admin.output import Output
from batonmq.admin.session import Admin, AdminError
from batonmq.protocol.names import check_topic
from batonmq.routing.static_topics import MOST_QUEUES


@command("updateStaticTopic")
@brokers_option
@clusters_option
@topic_option
@click.option(
    "-qn", "--totalQueueNum", "queues", type=click.IntRange(1, MOST_QUEUES), help="Number of logical queues."
)
@map_file_option
@force_option
async def main(
    admin: Admin,
    out: Output,
    brokers: str | None,
    clusters: str | None,
    topic: str,
    queues: int | None,
    map_file: Path | None,
    force: bool,
) -> None:
    """Create a static topic, or add queues to one.

    New queues go to the brokers that lead the fewest, of those given and those that know the topic.

    \b
      batonmq admin updateStaticTopic -n 127.0.0.1:9876 -t orders -qn 8 -b broker-a,broker-b
    """
    check_topic(topic)
    topics.check_configurable(topic)
    if map_file is not None:
        plan = static_topics.read_map(map_file, topic)
    else:
        if queues is None:
            raise AdminError("give -qn with the number of logical queues, or -mf with a map file")
        targets = await static_topics.brokers_of(admin, brokers, clusters)
        before, plan = await static_topics.plan_queues(admin, topic, queues, targets)
        out.note(f"what brokers knew before: {static_topics.write_map(before, 'before')}")
        out.note(f"the new mapping: {static_topics.write_map(plan, 'after')}")
    await static_topics.update(admin, plan, force=force)
    leaders = static_topics.leaders(plan)
    out.table(["queueId", "broker"], sorted(leaders.items()))
