"""What the export commands write: topics, groups and configurations of a cluster."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from batonmq.admin.operations import brokers
from batonmq.admin.session import Admin
from batonmq.protocol.bodies.common import TopicList
from batonmq.protocol.bodies.groups import SubscriptionGroupConfig, SubscriptionGroupWrapper
from batonmq.protocol.bodies.topics import TopicConfig, TopicConfigSerializeWrapper
from batonmq.protocol.codes import MASTER_ID, Perm
from batonmq.protocol.headers.broker.topics import (
    GetAllSubscriptionGroup,
    GetAllTopicConfig,
    GetSystemTopicListFromBroker,
)
from batonmq.protocol.json import decode
from batonmq.protocol.names import (
    DLQ_PREFIX,
    PREDEFINED_GROUPS,
    RETRY_PREFIX,
    is_system_group,
    is_system_topic,
)

CONFIG_KEYS: Final = (
    "brokerClusterName",
    "brokerId",
    "brokerName",
    "brokerRole",
    "fileReservedTime",
    "filterServerNums",
    "flushDiskType",
    "maxMessageSize",
    "messageDelayLevel",
    "msgTraceTopicName",
    "slaveReadEnable",
    "traceOn",
    "traceTopicEnable",
    "useTLS",
    "autoCreateTopicEnable",
    "autoCreateSubscriptionGroup",
)
"""The keys that RocketMQ exports of a broker's configuration."""


async def topics(admin: Admin, addresses: Iterable[str], *, special: bool) -> dict[str, TopicConfig]:
    """Users' topics of brokers by name, with their queues of all these brokers together. `special`: also
    those of retries and dead letters."""
    found: dict[str, TopicConfig] = {}
    for address in addresses:
        answer = await admin.ask(address, GetAllTopicConfig())
        table = decode(bytes(answer.body), TopicConfigSerializeWrapper).topic_config_table
        answer = await admin.ask(address, GetSystemTopicListFromBroker())
        system = set(decode(bytes(answer.body), TopicList).topic_list)
        for name, config in table.items():
            own = name in system or is_system_topic(name)
            if own or (not special and name.startswith((RETRY_PREFIX, DLQ_PREFIX))):
                continue
            if not 0 <= config.perm < Perm.PRIORITY:  # no topic may have it: RocketMQ leaves it out, too
                continue
            if (other := found.get(name)) is not None:
                config.read_queue_nums += other.read_queue_nums
                config.write_queue_nums += other.write_queue_nums
            found[name] = config
    return dict(sorted(found.items()))


async def groups(admin: Admin, addresses: Iterable[str]) -> dict[str, SubscriptionGroupConfig]:
    """Users' consumer groups of brokers by name, with their retry queues of all these brokers together."""
    found: dict[str, SubscriptionGroupConfig] = {}
    for address in addresses:
        answer = await admin.ask(address, GetAllSubscriptionGroup())
        table = decode(bytes(answer.body), SubscriptionGroupWrapper).subscription_group_table
        for name, config in table.items():
            if is_system_group(name) or name in PREDEFINED_GROUPS:
                continue
            if (other := found.get(name)) is not None:
                config.retry_queue_nums += other.retry_queue_nums
            found[name] = config
    return dict(sorted(found.items()))


async def configs(admin: Admin, cluster: str) -> dict[str, Any]:
    """The main keys of each master's configuration, and the size of the cluster. Raises `AdminError`."""
    masters = await admin.masters(cluster)
    slaves = [number for _, number, _ in await admin.replicas(cluster) if number != MASTER_ID]
    found = await brokers.configs(admin, list(masters.values()))
    return {
        "brokerConfigs": {
            name: {key: found[address][key] for key in CONFIG_KEYS if key in found[address]}
            for name, address in masters.items()
        },
        "clusterScale": {
            "namesrvSize": len(admin.namesrv),
            "masterBrokerSize": len(masters),
            "slaveBrokerSize": len(slaves),
        },
    }
