"""updateSubGroupList: create or change the consumer groups of a file."""

from pathlib import Path

from batonmq.admin.command import broker_option, command, masters_option, targets
from batonmq.admin.json_list import json_list_option, read_list
from batonmq.admin.operations import groups
from batonmq.admin.output import Output
from batonmq.admin.session import Admin
from batonmq.protocol.bodies.groups import SubscriptionGroupConfig


@command("updateSubGroupList")
@broker_option
@masters_option
@json_list_option
async def main(admin: Admin, out: Output, broker: str | None, cluster: str | None, file: Path) -> None:
    """Create or change the consumer groups of a file.

    At one broker with -b, at all masters of a cluster with -c. The file is a JSON list of groups as mqadmin
    has them; what is not given of one is set to its default.

    \b
      [{"groupName": "billing", "retryMaxTimes": 3}, {"groupName": "audit"}]
    """
    configs = read_list(file, SubscriptionGroupConfig)
    addresses = await targets(admin, broker, cluster)
    await groups.create_list(admin, addresses, configs)
    names = [config.group_name for config in configs]
    out.done(f"{len(names)} groups are at {', '.join(addresses)}", groups=names, brokers=addresses)
