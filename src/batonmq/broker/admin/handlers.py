"""The broker as a whole: figures, configuration, connected clients, cleaning up.

Source: RocketMQ's admin requests; the keys of the runtime figures are those its tools print.
"""

from __future__ import annotations

import difflib
import logging
import shutil

from batonmq.broker.config import BrokerConfig
from batonmq.broker.context import Broker
from batonmq.broker.stats import Counter
from batonmq.broker.tables.consumers import Member
from batonmq.broker.upkeep.part import unlink
from batonmq.common.config import ConfigError, changeable_keys, keys_of, parse_properties
from batonmq.common.config_values import to_properties
from batonmq.net.dispatch import Dispatcher, Reply, Request
from batonmq.protocol.bodies.clients import (
    Connection,
    ConsumerConnection,
    ProducerConnection,
    ProducerInfo,
    ProducerTableInfo,
)
from batonmq.protocol.bodies.common import KVTable
from batonmq.protocol.codes import LanguageCode, ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker import admin as wire
from batonmq.protocol.json import encode
from batonmq.protocol.versions import PROTOCOL_VERSION, version_name
from batonmq.store.disk import used_ratio

log = logging.getLogger(__name__)

"""Release whose behaviour this broker shows to tools."""

NEVER_FROM_OUTSIDE = frozenset({"brokerConfigPath", "rocketmqHome", "configBlackList"})
"""Keys that no request may change."""
UNLIMITED_QUEUE = "100000"
"""Shown as capacity of the thread pools that this broker does not have."""


def register(dispatcher: Dispatcher, broker: Broker) -> None:
    """Bind the requests of this module."""
    handlers = _AdminHandlers(broker)
    dispatcher.on(wire.GetBrokerRuntimeInfo, handlers.runtime_info)
    dispatcher.on(wire.GetBrokerConfig, handlers.get_config)
    dispatcher.on(wire.UpdateBrokerConfig, handlers.update_config)
    dispatcher.on(wire.GetConsumerConnectionList, handlers.consumer_connections)
    dispatcher.on(wire.GetProducerConnectionList, handlers.producer_connections)
    dispatcher.on(wire.GetAllProducerInfo, handlers.all_producers)
    dispatcher.on(wire.CleanExpiredConsumeQueue, handlers.delete_expired_queues)
    dispatcher.on(wire.CleanUnusedTopic, handlers.delete_unused_topics)
    dispatcher.on(wire.DeleteExpiredCommitLog, handlers.delete_expired_log)


class _AdminHandlers:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    # -- figures

    def runtime_info(self, request: Request, header: wire.GetBrokerRuntimeInfo) -> Reply:
        return Reply(body=encode(KVTable(table=runtime_info(self._broker))))

    # -- configuration

    def get_config(self, request: Request, header: wire.GetBrokerConfig) -> Reply:
        broker = self._broker
        text = to_properties(broker.settings.broker, broker.settings.store, broker.settings.ha)
        version = encode(broker.settings.version).decode()
        return Reply(wire.GetBrokerConfigResponse(version=version), text.encode())

    async def update_config(self, request: Request, header: wire.UpdateBrokerConfig) -> Reply:
        """Change keys of the running broker and of its file: all that are asked for, or none and one line
        that says why."""
        broker = self._broker
        try:
            changes = parse_properties(bytes(request.command.body).decode())
        except (UnicodeDecodeError, ConfigError) as error:
            raise MQError(ResponseCode.SYSTEM_ERROR, f"the body is no properties text: {error}") from None
        if not NEVER_FROM_OUTSIDE.isdisjoint(changes):
            raise MQError(ResponseCode.NO_PERMISSION, "Can not update config in black list.")
        self._refuse_what_has_no_effect(changes)
        log.info("configuration changed by client=%s changes=%s", request.connection.peer, changes)
        try:
            await broker.settings.change(changes, broker.clock.now_ms(), broker.role.epoch)
        except ConfigError as error:
            raise MQError(ResponseCode.SYSTEM_ERROR, str(error)) from None
        except (OSError, UnicodeDecodeError) as error:
            log.error("the configuration file cannot be written, a restart undoes the change: %s", error)
            raise MQError(
                ResponseCode.SYSTEM_ERROR,
                f"in force until a restart: the configuration file cannot be written: {error}",
            ) from error
        return Reply()

    def _refuse_what_has_no_effect(self, changes: dict[str, str]) -> None:
        broker = self._broker
        classes = (BrokerConfig, type(broker.settings.store), type(broker.settings.ha))
        known, changeable = keys_of(classes), changeable_keys(*classes)
        for key in changes:
            if key not in known:
                near = difflib.get_close_matches(key, known, n=1)
                hint = f"; did you mean {near[0]}?" if near else ""
                raise MQError(ResponseCode.SYSTEM_ERROR, f"unknown key {key}{hint}")
            if key not in changeable:
                raise MQError(
                    ResponseCode.SYSTEM_ERROR,
                    f"{key} cannot change while the broker runs; set it in its file and restart",
                )

    # -- connected clients

    def consumer_connections(self, request: Request, header: wire.GetConsumerConnectionList) -> Reply:
        group = self._broker.tables.consumers.group(header.consumer_group)
        if group is None:
            raise MQError(
                ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{header.consumer_group}] not online"
            )
        body = ConsumerConnection(
            connection_set=[_connection(member) for member in group.members.values()],
            subscription_table=group.subscriptions,
            consume_type=group.consume_type,
            message_model=group.message_model,
            consume_from_where=group.consume_from_where,
        )
        return Reply(body=encode(body))

    def producer_connections(self, request: Request, header: wire.GetProducerConnectionList) -> Reply:
        members = self._broker.tables.producers.members(header.producer_group)
        if members is None:
            raise MQError(ResponseCode.SYSTEM_ERROR, f"the producer group[{header.producer_group}] not exist")
        return Reply(body=encode(ProducerConnection(connection_set=[_connection(m) for m in members])))

    def all_producers(self, request: Request, header: wire.GetAllProducerInfo) -> Reply:
        table = {
            group: [
                ProducerInfo(
                    client_id=member.client_id,
                    remote_ip=member.connection.peer,
                    language=LanguageCode(member.language).name,
                    version=member.version,
                    last_update_timestamp=member.seen_ms,
                )
                for member in members.values()
            ]
            for group, members in self._broker.tables.producers.groups.items()
        }
        return Reply(body=encode(ProducerTableInfo(data=table)))

    # -- cleaning up

    async def delete_expired_queues(self, request: Request, header: wire.CleanExpiredConsumeQueue) -> Reply:
        return await self._delete_expired()

    async def delete_expired_log(self, request: Request, header: wire.DeleteExpiredCommitLog) -> Reply:
        return await self._delete_expired()

    async def _delete_expired(self) -> Reply:
        """Consume queue files expire with the log files they point into; both requests mean the same."""
        await unlink(self._broker.store.delete_expired())
        return Reply()

    def delete_unused_topics(self, request: Request, header: wire.CleanUnusedTopic) -> Reply:
        broker = self._broker
        for topic in sorted({topic for topic, _ in broker.store.queues()}):
            if topic not in broker.tables.topics:
                log.info("consume queues of an unknown topic deleted topic=%s", topic)
                broker.store.delete_topic(topic)
        return Reply()


def _connection(member: Member) -> Connection:
    return Connection(
        client_id=member.client_id,
        client_addr=member.connection.peer,
        language=LanguageCode(member.language).name,
        version=member.version,
    )


def runtime_info(broker: Broker) -> dict[str, str]:
    """What `clusterList` and `brokerStatus` print, every value as text."""
    now_ms, stats, store = broker.clock.now_ms(), broker.stats, broker.store
    path = broker.settings.store.commit_log_path
    disk, used = shutil.disk_usage(path), used_ratio(path)
    stored, stored_size = stats.put_messages.total, stats.put_bytes.total
    unflushed = max(0, store.max_offset - store.flushed_offset)
    info: dict[str, object] = {
        "brokerVersionDesc": version_name(PROTOCOL_VERSION),
        "brokerVersion": PROTOCOL_VERSION,
        "brokerActive": str(broker.role.is_master and not broker.role.stopping).lower(),
        "bootTimestamp": stats.started_ms,
        "runtime": _duration(now_ms - stats.started_ms),
        "startAcceptSendRequestTimeStamp": broker.settings.broker.start_accept_send_request_time_stamp,
        "msgPutTotalYesterdayMorning": stats.put_by_yesterday,
        "msgPutTotalTodayMorning": stats.put_by_today,
        "msgPutTotalTodayNow": stored,
        "msgGetTotalYesterdayMorning": stats.get_by_yesterday,
        "msgGetTotalTodayMorning": stats.get_by_today,
        "msgGetTotalTodayNow": stats.get_messages.total,
        "putTps": _rates(stats.put_messages),
        "getFoundTps": _rates(stats.found_pulls),
        "getMissTps": _rates(stats.missed_pulls),
        "getTotalTps": _rates(stats.found_pulls, stats.missed_pulls),
        "getTransferredTps": _rates(stats.get_messages),
        "putMessageTimesTotal": stored,
        "putMessageSizeTotal": stored_size,
        "putMessageAverageSize": stored_size / stored if stored else 0.0,
        "commitLogMinOffset": store.min_offset,
        "commitLogMaxOffset": store.max_offset,
        "commitLogDiskRatio": f"{used:.2f}",
        "consumeQueueDiskRatio": f"{used:.2f}",
        "commitLogDirCapacity": f"Total : {_size(disk.total)}, Free : {_size(disk.free)}.",
        "earliestMessageTimeStamp": store.earliest_message_time(),
        "dispatchBehindBytes": max(0, store.max_offset - store.dispatched_offset),
        "remainHowManyDataToFlush": _size(unflushed),
        "remainTransientStoreBufferNumbs": 0,
        "pageCacheLockTimeMills": 0,
        "EndTransactionQueueSize": 0,
        "EndTransactionThreadPoolQueueCapacity": UNLIMITED_QUEUE,
    }
    # One event loop serves everything: there are no thread pools, so nothing waits in their queues.
    for pool in ("send", "pull", "litePull", "query", "ack"):
        info[f"{pool}ThreadPoolQueueSize"] = 0
        info[f"{pool}ThreadPoolQueueCapacity"] = UNLIMITED_QUEUE
        info[f"{pool}ThreadPoolQueueHeadWaitTimeMills"] = 0
    info["sendThreadPoolQueueCapacity"] = broker.settings.broker.send_thread_pool_queue_capacity
    # The tools read these five whether or not there is a timer wheel.
    info |= {"timerReadBehind": 0, "timerOffsetBehind": 0, "timerCongestNum": 0}
    info |= {"timerEnqueueTps": 0.0, "timerDequeueTps": 0.0}
    return {key: str(value) for key, value in sorted(info.items())}


def _rates(*counters: Counter) -> str:
    """Events a second within the last minute, hour and day, as the tools split it."""
    windows = ("minute", "hour", "day")
    sums = (sum(getattr(c, window).snapshot().per_second for c in counters) for window in windows)
    return " ".join(f"{value:.2f}" for value in sums)


def _duration(ms: int) -> str:
    seconds = max(0, ms) // 1000
    days, seconds = divmod(seconds, 86_400)
    hours, seconds = divmod(seconds, 3_600)
    minutes, seconds = divmod(seconds, 60)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"


def _size(count: float) -> str:
    if count < 1024:
        return f"{count:.0f} B"
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        count /= 1024
        if count < 1024 or unit == "TiB":
            return f"{count:.1f} {unit}"
    raise AssertionError("unreachable")
