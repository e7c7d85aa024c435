"""getConsumerConfig: how a consumer group is configured."""

from batonmq.admin.command import command, group_option
from batonmq.admin.output import Output
from batonmq.admin.session import Admin
from batonmq.protocol.bodies.groups import SubscriptionGroupConfig
from batonmq.protocol.headers.broker import topics as wire
from batonmq.protocol.json import decode


@command("getConsumerConfig")
@group_option
async def main(admin: Admin, out: Output, group: str) -> None:
    """Show a consumer group's configuration.

    As every master has it.
    """
    rows = []
    for name, address in (await admin.masters()).items():
        answer = await admin.ask(address, wire.GetSubscriptionGroupConfig(group=group))
        config = decode(bytes(answer.body), SubscriptionGroupConfig)
        rows.append(
            [
                name,
                config.consume_enable,
                config.consume_from_min_enable,
                config.consume_broadcast_enable,
                config.consume_message_orderly,
                config.retry_queue_nums,
                config.retry_max_times,
                config.notify_consumer_ids_changed_enable,
            ]
        )
    columns = ["broker", "enabled", "fromMin", "broadcast", "orderly", "retryQueues", "retryMax", "notify"]
    out.table(columns, rows)
