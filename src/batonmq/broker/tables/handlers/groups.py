"""Consumer groups: creating, changing, deleting and listing them.

A change is answered after the slaves have copied it, so that it survives a switch; slow slaves and RocketMQ's
are given up after a while (`broker/tables/watch.py`). Source: RocketMQ's admin requests; its tools depend on
the codes and show the remarks.
"""

from __future__ import annotations

import logging

from batonmq.broker.context import Broker
from batonmq.broker.requests import PAGE_SIZE, required_body, version_of
from batonmq.broker.tables.topics import MAX_QUEUES
from batonmq.net.dispatch import Dispatcher, Reply, Request
from batonmq.protocol.bodies.groups import (
    GroupForbidden,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    SubscriptionGroupWrapper,
)
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker import topics as wire
from batonmq.protocol.json import encode
from batonmq.protocol.names import check_group

log = logging.getLogger(__name__)


def register(dispatcher: Dispatcher, broker: Broker) -> None:
    """Bind the requests of this module."""
    groups = _GroupHandlers(broker)
    dispatcher.on(wire.UpdateSubscriptionGroup, groups.update)
    dispatcher.on(wire.UpdateSubscriptionGroupList, groups.update_list)
    dispatcher.on(wire.DeleteSubscriptionGroup, groups.delete)
    dispatcher.on(wire.GetSubscriptionGroupConfig, groups.get)
    dispatcher.on(wire.GetAllSubscriptionGroup, groups.get_all)
    dispatcher.on(wire.UpdateGroupForbidden, groups.forbid)


class _GroupHandlers:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def _update(self, *configs: SubscriptionGroupConfig) -> None:
        for config in configs:
            check_group(config.group_name, ResponseCode.INVALID_PARAMETER)
            if config.retry_queue_nums > MAX_QUEUES:  # its retry topic will have so many
                raise MQError(
                    ResponseCode.INVALID_PARAMETER,
                    f"The group {config.group_name} cannot have more than {MAX_QUEUES} retry queues.",
                )
        self._broker.tables.subscriptions.update(*configs)
        await self._broker.tables.durable()

    async def update(self, request: Request, header: wire.UpdateSubscriptionGroup) -> Reply:
        await self._update(required_body(request, SubscriptionGroupConfig))
        return Reply()

    async def update_list(self, request: Request, header: wire.UpdateSubscriptionGroupList) -> Reply:
        await self._update(*required_body(request, SubscriptionGroupList).group_config_list)
        return Reply()

    async def delete(self, request: Request, header: wire.DeleteSubscriptionGroup) -> Reply:
        log.info("deleting group=%s client=%s", header.group_name, request.connection.peer)
        self._broker.tables.subscriptions.delete(header.group_name)
        if header.clean_offset:
            self._broker.tables.offsets.remove_group(header.group_name)
        self._broker.stats.forget_group(header.group_name)
        await self._broker.tables.durable()
        return Reply()

    def get(self, request: Request, header: wire.GetSubscriptionGroupConfig) -> Reply:
        config = self._broker.tables.subscriptions.get_or_create(header.group)
        if config is None:
            raise MQError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "No group in this broker")
        return Reply(body=encode(config))

    def get_all(self, request: Request, header: wire.GetAllSubscriptionGroup) -> Reply:
        groups = self._broker.tables.subscriptions
        table = dict(groups.table)
        if header.group_seq is not None:
            count = min(PAGE_SIZE, header.max_group_num or PAGE_SIZE)
            table = groups.page(version_of(header.data_version), header.group_seq, count)
        body = SubscriptionGroupWrapper(
            subscription_group_table=table,
            forbidden_table={g: dict(t) for g, t in groups.forbidden_table.items() if g in table},
            data_version=groups.version,
        )
        return Reply(wire.GetAllSubscriptionGroupResponse(total_group_num=len(groups)), encode(body))

    async def forbid(self, request: Request, header: wire.UpdateGroupForbidden) -> Reply:
        groups = self._broker.tables.subscriptions
        if header.readable is not None:
            groups.set_forbidden(header.group, header.topic, not header.readable)
            await self._broker.tables.durable()
        readable = not groups.forbidden(header.group, header.topic)
        body = GroupForbidden(group=header.group, topic=header.topic, readable=readable)
        return Reply(body=encode(body))
