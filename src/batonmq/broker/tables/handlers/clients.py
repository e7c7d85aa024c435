"""Requests of connected clients: heartbeats, group members.

Source: RocketMQ's client and consumer management. The answer to HEART_BEAT offers heartbeat V2, which lets a
client omit its subscriptions while they do not change.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from batonmq.broker.context import Broker
from batonmq.broker.requests import required_body
from batonmq.broker.sql import SqlError
from batonmq.broker.tables.broadcast import MAX_CLIENT_ID
from batonmq.broker.tables.consumers import NoRoom
from batonmq.broker.tables.filters import MAX_COMPILED, compile_filter
from batonmq.common.log import some
from batonmq.net.dispatch import Dispatcher, Outcome, Reply, Request
from batonmq.protocol.bodies.clients import (
    CheckClientRequestBody,
    ConsumerData,
    ConsumerIdList,
    ConsumeType,
    HeartbeatData,
    ProducerData,
)
from batonmq.protocol.bodies.topics import TopicConfig
from batonmq.protocol.codes import Perm, ResponseCode, TopicSysFlag
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker import clients as wire
from batonmq.protocol.headers.broker.replication import GetAllConsumerFilter
from batonmq.protocol.headers.client import NotifyConsumerIdsChanged
from batonmq.protocol.json import encode
from batonmq.protocol.names import group_error, retry_topic
from batonmq.protocol.signing import ACCESS_KEY
from batonmq.protocol.tags import is_tag_type

log = logging.getLogger(__name__)

SLICE: Final = 100
"""Groups of one heartbeat that are registered in one loop turn, about 2 ms."""
MAX_GROUPS: Final = 10_000
"""Groups that one heartbeat may name; RocketMQ sets no limit, and no client comes near it."""


def register(dispatcher: Dispatcher, broker: Broker) -> None:
    """Bind the requests of this module."""
    handlers = _ClientHandlers(broker)
    broker.tables.consumers.on_members_changed = _Notifier(broker).members_changed
    dispatcher.on(wire.Heartbeat, handlers.heartbeat)
    dispatcher.on(wire.UnregisterClient, handlers.unregister)
    dispatcher.on(wire.CheckClientConfig, handlers.check_config)
    dispatcher.on(wire.GetConsumerListByGroup, handlers.consumer_ids)
    dispatcher.on(GetAllConsumerFilter, handlers.filters)


class _Notifier:
    """Notifies all members of a changed group, at most once per loop turn."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._groups: dict[str, None] = {}

    def members_changed(self, group: str) -> None:
        if not self._broker.settings.broker.notify_consumer_ids_changed_enable:
            return
        if not self._groups:
            asyncio.get_running_loop().call_soon(self._notify)
        self._groups[group] = None

    def _notify(self) -> None:
        groups, self._groups = self._groups, {}
        for group in groups:
            header = NotifyConsumerIdsChanged(consumer_group=group)
            for connection in self._broker.tables.consumers.connections(group):
                if not connection.congested:  # else they would pile up; clients rebalance by themselves too
                    connection.oneway(header)


class _HeartbeatRegistration:
    """Registers the groups of one heartbeat. A log line and a change of a table cost more than a
    registration, so there is one of each for all groups of a slice.

    As in RocketMQ a group that does not exist and may not be created is ignored, and the answer does not
    mention it; its pulls are refused.
    """

    def __init__(self, broker: Broker, request: Request, data: HeartbeatData) -> None:
        self._broker = broker
        self._connection = request.connection
        self._command = request.command
        self._data = data
        self._version_2 = data.heartbeat_fingerprint != 0
        self._other_subscriptions = False
        self._sql_budget = MAX_COMPILED

    async def register_in_slices(self) -> Reply:
        """Register all groups, and let other tasks run between the slices."""
        for start in range(0, len(self._data.consumer_data_set), SLICE):
            self.register_consumers(self._data.consumer_data_set[start : start + SLICE])
            await asyncio.sleep(0)
        for start in range(0, len(self._data.producer_data_set), SLICE):
            self.register_producers(self._data.producer_data_set[start : start + SLICE])
            await asyncio.sleep(0)
        return self.reply()

    def reply(self) -> Reply:
        changed = self._other_subscriptions if self._version_2 else True
        return Reply(wire.HeartbeatResponse(is_support_heart_beat_v2=True, is_sub_change=changed))

    def register_consumers(self, consumers: Sequence[ConsumerData]) -> None:
        broker, connection, data = self._broker, self._connection, self._data
        if broker.settings.broker.reject_pull_consumer_enable:
            consumers = [each for each in consumers if each.consume_type is not ConsumeType.ACTIVELY]
        broker.tables.subscriptions.ensure(consumer.group_name for consumer in consumers)
        now_ms = broker.clock.monotonic_ms()
        retry_topics: list[TopicConfig] = []
        unknown: list[str] = []
        joined: list[str] = []
        replaced: dict[str, None] = {}
        for consumer in consumers:
            name = consumer.group_name
            group = broker.tables.subscriptions.get(name)
            if group is None:
                unknown.append(name)
                continue
            changed = broker.tables.consumers.fingerprint_changed(name, data.heartbeat_fingerprint)
            self._other_subscriptions |= changed
            retry_topics.append(self._retry_topic(consumer, group.retry_queue_nums))
            known = broker.tables.consumers.member_on(name, connection)
            if known is None:
                joined.append(name)
            elif known.client_id != data.client_id:
                replaced[known.client_id] = None
            try:
                broker.tables.consumers.register(
                    consumer,
                    connection,
                    data.client_id,
                    language=self._command.language,
                    version=self._command.version,
                    now_ms=now_ms,
                    notify=group.notify_consumer_ids_changed_enable,
                    with_subscriptions=not (self._version_2 and data.without_sub),
                )
            except NoRoom as error:
                connection.warn(f"heartbeat refused: {error}")
                raise MQError(ResponseCode.SYSTEM_ERROR, str(error)) from None
            if broker.settings.broker.enable_property_filter:
                self._sql_budget = broker.tables.filters.register(
                    name, consumer.subscription_data_set, self._sql_budget
                )
        if broker.role.is_master:  # a slave copies them with the master's topics
            broker.tables.topics.ensure(retry_topics)
        self._log("consumer connected", joined)
        if unknown:
            log.warning(
                "heartbeat names groups that do not exist and may not be created: groups=%s client=%s",
                some([name or repr(name) for name in unknown]),
                connection.peer,
            )
        if replaced:
            log.error(
                "two clients on one connection old=%s new=%s client=%s",
                some(replaced),
                data.client_id,
                connection.peer,
            )

    def register_producers(self, producers: Sequence[ProducerData]) -> None:
        now_ms = self._broker.clock.monotonic_ms()
        joined = [
            producer.group_name
            for producer in producers
            if group_error(producer.group_name) is None
            and self._broker.tables.producers.register(
                producer.group_name,
                self._connection,
                self._data.client_id,
                language=self._command.language,
                version=self._command.version,
                now_ms=now_ms,
                user=self._command.ext.get(ACCESS_KEY),
            )
        ]
        self._log("producer connected", joined)

    def _log(self, what: str, groups: Sequence[str]) -> None:
        if groups:
            log.info(
                "%s groups=%s id=%s client=%s",
                what,
                some(groups),
                self._data.client_id,
                self._connection.peer,
            )

    def _retry_topic(self, consumer: ConsumerData, queues: int) -> TopicConfig:
        topics = self._broker.tables.topics
        return TopicConfig(
            topic_name=retry_topic(consumer.group_name),
            read_queue_nums=queues,
            write_queue_nums=queues,
            perm=Perm.READ_WRITE,
            topic_sys_flag=TopicSysFlag.UNIT_SUB if consumer.unit_mode else 0,
            order=any(topics.is_order(s.topic) for s in consumer.subscription_data_set),
        )


class _ClientHandlers:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def heartbeat(self, request: Request, header: wire.Heartbeat) -> Outcome:
        data = required_body(request, HeartbeatData)
        count = len(data.consumer_data_set) + len(data.producer_data_set)
        if count > MAX_GROUPS:
            raise MQError(
                ResponseCode.SYSTEM_ERROR,
                f"the heartbeat names {count} groups, at most {MAX_GROUPS} are allowed",
            )
        if len(data.client_id) > MAX_CLIENT_ID:  # it is kept with each group, and logged
            raise MQError(
                ResponseCode.SYSTEM_ERROR,
                f"a client id of {len(data.client_id)} characters, at most {MAX_CLIENT_ID} are allowed",
            )
        registration = _HeartbeatRegistration(self._broker, request, data)
        if count <= SLICE:
            registration.register_consumers(data.consumer_data_set)
            registration.register_producers(data.producer_data_set)
            return registration.reply()
        return registration.register_in_slices()

    def unregister(self, request: Request, header: wire.UnregisterClient) -> Reply:
        broker = self._broker
        if header.producer_group is not None:
            broker.tables.producers.unregister(header.producer_group, request.connection)
        if header.consumer_group is not None:
            group = broker.tables.subscriptions.get(header.consumer_group)
            notify = group is None or group.notify_consumer_ids_changed_enable
            broker.tables.consumers.unregister(header.consumer_group, request.connection, notify=notify)
        return Reply()

    def check_config(self, request: Request, header: wire.CheckClientConfig) -> Reply:
        subscription = required_body(request, CheckClientRequestBody).subscription_data
        if subscription is not None and not is_tag_type(subscription.expression_type):
            kind = subscription.expression_type
            if not self._broker.settings.broker.enable_property_filter:
                raise MQError(
                    ResponseCode.SYSTEM_ERROR,
                    f"The broker does not support consumer to filter message by {kind}",
                )
            try:
                compile_filter(subscription.sub_string, kind)
            except SqlError as error:
                raise MQError(
                    ResponseCode.SUBSCRIPTION_PARSE_FAILED, f"Invalid MessageSelector. {error}"
                ) from None
        return Reply()

    def filters(self, request: Request, header: GetAllConsumerFilter) -> Reply:
        return Reply(body=self._broker.tables.filters.encode())

    def consumer_ids(self, request: Request, header: wire.GetConsumerListByGroup) -> Reply:
        group = self._broker.tables.consumers.group(header.consumer_group)
        if group is None:
            raise MQError(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {header.consumer_group}")
        return Reply(body=encode(ConsumerIdList(consumer_id_list=group.client_ids)))
