"""remappingStaticTopic: move the logical queues of a static topic to other brokers."""

from pathlib import Path

from batonmq.admin.command import (
    brokers_option,
    clusters_option,
    command,
    force_option,
    map_file_option,
    topic_option,
)
from batonmq.admin.operations import static_topics
from batonmq.admin.output import Output
from batonmq.admin.session import Admin


@command("remappingStaticTopic")
@brokers_option
@clusters_option
@topic_option
@map_file_option
@force_option
async def main(
    admin: Admin,
    out: Output,
    brokers: str | None,
    clusters: str | None,
    topic: str,
    map_file: Path | None,
    force: bool,
) -> None:
    """Move a static topic's queues to other brokers.

    The brokers given lead all queues afterwards, the same number each within one. Messages stay where they
    are: consumers read them through the new leaders.

    \b
      batonmq admin remappingStaticTopic -n 127.0.0.1:9876 -t orders -b broker-b,broker-c
    """
    if map_file is not None:
        plan = static_topics.read_map(map_file, topic)
    else:
        targets = await static_topics.brokers_of(admin, brokers, clusters)
        before, plan = await static_topics.plan_remapping(admin, topic, targets)
        out.note(f"what brokers knew before: {static_topics.write_map(before, 'before')}")
        out.note(f"the new mapping: {static_topics.write_map(plan, 'after')}")
    await static_topics.remap(admin, plan, force=force)
    leaders = static_topics.leaders(plan)
    out.table(["queueId", "broker"], sorted(leaders.items()))
