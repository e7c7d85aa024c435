"""updateTopicList: create or change the topics of a file."""

from pathlib import Path

from batonmq.admin.command import broker_option, command, masters_option, targets
from batonmq.admin.json_list import json_list_option, read_list
from batonmq.admin.operations import topics
from batonmq.admin.output import Output
from batonmq.admin.session import Admin
from batonmq.protocol.bodies.topics import TopicConfig


@command("updateTopicList")
@broker_option
@masters_option
@json_list_option
async def main(admin: Admin, out: Output, broker: str | None, cluster: str | None, file: Path) -> None:
    """Create or change the topics of a file.

    At one broker with -b, at all masters of a cluster with -c. The file is a JSON list of topics as mqadmin
    has them; what is not given of one is set to its default. Attributes are changes (+name, -name).

    \b
      [{"topicName": "orders", "readQueueNums": 8, "writeQueueNums": 8,
        "attributes": {"+message.type": "FIFO"}}]
    """
    configs = read_list(file, TopicConfig)
    addresses = await targets(admin, broker, cluster)
    await topics.create_list(admin, addresses, configs)
    names = [config.topic_name for config in configs]
    out.done(f"{len(names)} topics are at {', '.join(addresses)}", topics=names, brokers=addresses)
