"""Requests of producers and consumers about themselves: heartbeats, group members, queue locks.

Source: RocketMQ's client and consumer management; HEART_BEAT answers in the form of heartbeat V2, which lets
a client leave out its subscriptions while they do not change.
"""

from __future__ import annotations

import asyncio
import logging

from batonmq.broker.context import Broker
from batonmq.broker.handlers.body import required_body
from batonmq.broker.topics import FLAG_UNIT_SUB
from batonmq.net.dispatch import Dispatcher, Reply, Request
from batonmq.protocol.bodies import (
    CheckClientRequestBody,
    ConsumerData,
    ConsumerIdList,
    ConsumeType,
    HeartbeatData,
    LockBatchRequestBody,
    LockBatchResponseBody,
    UnlockBatchRequestBody,
    encode,
)
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers import broker as wire
from batonmq.protocol.headers.client import NotifyConsumerIdsChanged
from batonmq.protocol.names import retry_topic
from batonmq.protocol.registry import Header, field

log = logging.getLogger(__name__)

TAG_EXPRESSIONS = (None, "", "TAG")


def register(dispatcher: Dispatcher, broker: Broker) -> None:
    """Bind the requests of this module."""
    handlers = _ClientHandlers(broker)
    broker.consumers.on_members_changed = _Notifier(broker).members_changed
    dispatcher.on(wire.Heartbeat, handlers.heartbeat)
    dispatcher.on(wire.UnregisterClient, handlers.unregister)
    dispatcher.on(wire.CheckClientConfig, handlers.check_config)
    dispatcher.on(wire.GetConsumerListByGroup, handlers.consumer_ids)
    dispatcher.on(wire.LockBatchMq, handlers.lock)
    dispatcher.on(wire.UnlockBatchMq, handlers.unlock)


class _HeartbeatResponse(Header):
    """What makes a client send heartbeats V2, and whether it is to send its subscriptions again."""

    is_support_heart_beat_v2: bool = field("IS_SUPPORT_HEART_BEAT_V2")
    is_sub_change: bool = field("IS_SUB_CHANGE")


class _Notifier:
    """Tells all members of a group once a loop turn that its members have changed."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._groups: dict[str, None] = {}

    def members_changed(self, group: str) -> None:
        if not self._broker.config.notify_consumer_ids_changed_enable:
            return
        if not self._groups:
            asyncio.get_running_loop().call_soon(self._tell)
        self._groups[group] = None

    def _tell(self) -> None:
        groups, self._groups = self._groups, {}
        for group in groups:
            header = NotifyConsumerIdsChanged(consumer_group=group)
            for connection in self._broker.consumers.connections(group):
                connection.oneway(header)


class _ClientHandlers:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def heartbeat(self, request: Request, header: wire.Heartbeat) -> Reply:
        data = required_body(request, HeartbeatData)
        broker, command, connection = self._broker, request.command, request.connection
        now_ms = broker.clock.now_ms()
        version_2 = data.heartbeat_fingerprint != 0
        other_subscriptions = False
        for consumer in data.consumer_data_set:
            if broker.config.reject_pull_consumer_enable and consumer.consume_type is ConsumeType.ACTIVELY:
                continue
            group = broker.subscriptions.find(consumer.group_name)
            if group is None:
                log.warning(
                    "heartbeat of an unknown group=%s client=%s", consumer.group_name, connection.peer
                )
                continue
            changed = broker.consumers.fingerprint_changed(consumer.group_name, data.heartbeat_fingerprint)
            other_subscriptions |= changed
            self._offer_retry_topic(consumer, group.retry_queue_nums)
            broker.consumers.register(
                consumer,
                connection,
                data.client_id,
                language=command.language,
                version=command.version,
                now_ms=now_ms,
                notify=group.notify_consumer_ids_changed_enable,
                with_subscriptions=not (version_2 and data.without_sub),
            )
        for producer in data.producer_data_set:
            broker.producers.register(
                producer.group_name,
                connection,
                data.client_id,
                language=command.language,
                version=command.version,
                now_ms=now_ms,
            )
        return Reply(
            _HeartbeatResponse(
                is_support_heart_beat_v2=True, is_sub_change=other_subscriptions if version_2 else True
            )
        )

    def _offer_retry_topic(self, consumer: ConsumerData, queues: int) -> None:
        if self._broker.role.is_master:  # a slave gets it with the master's topics
            topics = self._broker.topics
            topics.create_on_send_back(
                retry_topic(consumer.group_name),
                queues,
                order=any(topics.is_order(s.topic) for s in consumer.subscription_data_set),
                sys_flag=FLAG_UNIT_SUB if consumer.unit_mode else 0,
            )

    def unregister(self, request: Request, header: wire.UnregisterClient) -> Reply:
        broker = self._broker
        if header.producer_group is not None:
            broker.producers.unregister(header.producer_group, request.connection)
        if header.consumer_group is not None:
            group = broker.subscriptions.get(header.consumer_group)
            notify = group is None or group.notify_consumer_ids_changed_enable
            broker.consumers.unregister(header.consumer_group, request.connection, notify=notify)
        return Reply()

    def check_config(self, request: Request, header: wire.CheckClientConfig) -> Reply:
        subscription = required_body(request, CheckClientRequestBody).subscription_data
        if subscription is not None and subscription.expression_type not in TAG_EXPRESSIONS:
            raise MQError(
                ResponseCode.SYSTEM_ERROR,
                f"The broker does not support consumer to filter message by {subscription.expression_type}",
            )
        return Reply()

    def consumer_ids(self, request: Request, header: wire.GetConsumerListByGroup) -> Reply:
        group = self._broker.consumers.group(header.consumer_group)
        if group is None:
            raise MQError(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {header.consumer_group}")
        return Reply(body=encode(ConsumerIdList(consumer_id_list=group.client_ids)))

    def lock(self, request: Request, header: wire.LockBatchMq) -> Reply:
        asked = required_body(request, LockBatchRequestBody)
        now_ms = self._broker.clock.now_ms()
        locked = self._broker.locks.try_lock(asked.consumer_group, asked.mq_set, asked.client_id, now_ms)
        return Reply(
            body=encode(LockBatchResponseBody(lock_ok_mq_set=[q for q in asked.mq_set if q in locked]))
        )

    def unlock(self, request: Request, header: wire.UnlockBatchMq) -> Reply:
        asked = required_body(request, UnlockBatchRequestBody)
        self._broker.locks.unlock(asked.consumer_group, asked.mq_set, asked.client_id)
        return Reply()
