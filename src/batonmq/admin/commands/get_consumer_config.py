"""getConsumerConfig: how a consumer group is configured."""

from batonmq.admin.command import command, group_option
from batonmq.admin.operations import groups
from batonmq.admin.output import Output
from batonmq.admin.session import Admin


@command("getConsumerConfig")
@group_option
async def main(admin: Admin, out: Output, group: str) -> None:
    """Show a consumer group's configuration.

    As every master has it.
    """
    rows = [
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
        for name, config in (await groups.configs(admin, group)).items()
    ]
    columns = ["broker", "enabled", "fromMin", "broadcast", "orderly", "retryQueues", "retryMax", "notify"]
    out.table(columns, rows)
