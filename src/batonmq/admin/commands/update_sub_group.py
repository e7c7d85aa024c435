"""updateSubGroup: create or change a consumer group."""

import click

from batonmq.admin.command import broker_option, command, group_option, masters_option, targets
from batonmq.admin.operations import groups
from batonmq.admin.output import Output
from batonmq.admin.session import Admin
from batonmq.protocol.bodies.groups import GroupRetryPolicy, SubscriptionGroupConfig
from batonmq.protocol.json import BodyError, decode


def _policy(_: click.Context, __: click.Parameter, text: str | None) -> GroupRetryPolicy:
    try:
        return GroupRetryPolicy() if text is None else decode(text.encode(), GroupRetryPolicy)
    except BodyError as error:
        raise click.BadParameter(str(error.remark)) from None


@command("updateSubGroup")
@broker_option
@masters_option
@group_option
@click.option(
    "-s",
    "--consumeEnable",
    "enable",
    type=bool,
    default=True,
    show_default=True,
    help="The group may consume.",
)
@click.option(
    "-m",
    "--consumeFromMinEnable",
    "from_min",
    type=bool,
    default=False,
    help="May consume from the first message on.",
)
@click.option(
    "-d",
    "--consumeBroadcastEnable",
    "broadcast",
    type=bool,
    default=False,
    help="May consume in broadcast mode.",
)
@click.option("-o", "--consumeMessageOrderly", "orderly", type=bool, default=False, help="Consumes in order.")
@click.option(
    "-q",
    "--retryQueueNums",
    "retry_queues",
    type=int,
    default=1,
    show_default=True,
    help="Number of queues of its retry topic.",
)
@click.option(
    "-r",
    "--retryMaxTimes",
    "retries",
    type=int,
    default=16,
    show_default=True,
    help="Retries before a message is given up.",
)
@click.option(
    "-i",
    "--brokerId",
    "broker_id",
    type=int,
    default=0,
    show_default=True,
    help="Broker id that it reads from.",
)
@click.option(
    "-w",
    "--whichBrokerWhenConsumeSlowly",
    "slow_id",
    type=int,
    default=1,
    show_default=True,
    help="Broker id that it reads from when far behind.",
)
@click.option(
    "-a",
    "--notifyConsumerIdsChanged",
    "notify",
    type=bool,
    default=True,
    help="Notify its members when one joins or leaves.",
)
@click.option(
    "-p",
    "--groupRetryPolicy",
    "policy",
    callback=_policy,
    help="Delays between retries, JSON: {"
    '"type":"EXPONENTIAL","exponentialRetryPolicy":{"initial":5000,"max":7200000,"multiplier":2}} or {'
    '"type":"CUSTOMIZED","customizedRetryPolicy":{"next":[1000,5000]}}, ms.',
)
async def main(
    admin: Admin,
    out: Output,
    broker: str | None,
    cluster: str | None,
    group: str,
    enable: bool,
    from_min: bool,
    broadcast: bool,
    orderly: bool,
    retry_queues: int,
    retries: int,
    broker_id: int,
    slow_id: int,
    notify: bool,
    policy: GroupRetryPolicy,
) -> None:
    """Create a consumer group, or change it.

    On one broker with -b, on all masters of a cluster with -c. What is not given is set to its default.
    """
    config = SubscriptionGroupConfig(
        group_name=group,
        consume_enable=enable,
        consume_from_min_enable=from_min,
        consume_broadcast_enable=broadcast,
        consume_message_orderly=orderly,
        retry_queue_nums=retry_queues,
        retry_max_times=retries,
        broker_id=broker_id,
        which_broker_when_consume_slowly=slow_id,
        notify_consumer_ids_changed_enable=notify,
        group_retry_policy=policy,
    )
    addresses = await targets(admin, broker, cluster)
    await groups.create(admin, addresses, config)
    out.done(f"group {group} is at {', '.join(addresses)}", group=group, brokers=addresses)
