"""Offsets of queues and consumer groups: commits, queries, resets.

Source: RocketMQ's consumer offset requests; its clients and tools depend on the codes and remarks.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from batonmq.broker.context import Broker
from batonmq.broker.role import RoleKind, rejected
from batonmq.broker.tables.offsets import NOT_FOUND, OFFSETS
from batonmq.common.config import LONG_MAX
from batonmq.net.dispatch import Dispatcher, Outcome, Reply, Request
from batonmq.protocol.bodies.clients import MessageQueueForC, ResetOffsetBody, ResetOffsetBodyForC
from batonmq.protocol.bodies.common import MessageQueue
from batonmq.protocol.bodies.statistics import QueryCorrectionOffsetBody
from batonmq.protocol.codes import LanguageCode, ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.admin import CloneGroupOffset, QueryCorrectionOffset, ResetOffset
from batonmq.protocol.headers.broker.pull import (
    GetAllConsumerOffset,
    GetEarliestMsgStoretime,
    GetEarliestMsgStoretimeResponse,
    GetMaxOffset,
    GetMaxOffsetResponse,
    GetMinOffset,
    GetMinOffsetResponse,
    QueryConsumerOffset,
    QueryConsumerOffsetResponse,
    SearchOffset,
    SearchOffsetResponse,
    UpdateConsumerOffset,
)
from batonmq.protocol.headers.broker.replication import GetAllResetOffset
from batonmq.protocol.headers.client import ResetConsumerClientOffset
from batonmq.protocol.json import encode
from batonmq.store.results import Boundary

log = logging.getLogger(__name__)

VISIBLE_POLL_S = 0.005
VISIBLE_TIMEOUT_MS = 2_500
"""RocketMQ's clients wait 3 s for an answer."""


def register(dispatcher: Dispatcher, broker: Broker) -> None:
    """Bind the requests of this module."""
    handlers = _OffsetHandlers(broker)
    dispatcher.on(UpdateConsumerOffset, handlers.commit)
    dispatcher.on(QueryConsumerOffset, handlers.query)
    dispatcher.on(GetMaxOffset, handlers.max_offset)
    dispatcher.on(GetMinOffset, handlers.min_offset)
    dispatcher.on(SearchOffset, handlers.search)
    dispatcher.on(GetEarliestMsgStoretime, handlers.earliest)
    dispatcher.on(GetAllConsumerOffset, handlers.all_offsets)
    dispatcher.on(ResetOffset, handlers.reset)
    dispatcher.on(GetAllResetOffset, handlers.all_resets)
    dispatcher.on(CloneGroupOffset, handlers.clone)
    dispatcher.on(QueryCorrectionOffset, handlers.correction)


class _OffsetHandlers:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._waiting: asyncio.Future[None] | None = None
        """Done once `_hidden` has changed, or has lasted too long."""

    # -- a group's offsets

    def commit(self, request: Request, header: UpdateConsumerOffset) -> Outcome:
        broker = self._broker
        group, topic, queue_id = header.consumer_group, header.topic, header.queue_id
        if header.handed_over:
            # A consumer's heartbeat may have created it at the acting slave while this master was away.
            broker.tables.subscriptions.ensure([group])
        if group not in broker.tables.subscriptions:
            raise MQError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {group} not exist!")
        if topic not in broker.tables.topics:
            raise MQError(ResponseCode.TOPIC_NOT_EXIST, f"Topic {topic} not exist!")
        if broker.settings.broker.use_server_side_reset_offset and broker.tables.offsets.has_reset(
            group, topic, queue_id
        ):
            return Reply(remark="Offset has been previously reset")
        if header.handed_over:
            return self._take_over(request, header)
        broker.tables.offsets.commit(group, topic, queue_id, header.commit_offset, request.connection.peer)
        return Reply()

    async def _take_over(self, request: Request, header: UpdateConsumerOffset) -> Reply:
        """A slave that acted as master forgets the offset after this answer, so it must be on disk before."""
        offsets = self._broker.tables.offsets
        group, topic, queue_id = header.consumer_group, header.topic, header.queue_id
        if header.commit_offset > offsets.of(group, topic).get(queue_id, NOT_FOUND):
            offsets.commit(group, topic, queue_id, header.commit_offset, request.connection.peer)
        # Even if it was here: an earlier attempt may have failed at the disk.
        await self._broker.tables.written(OFFSETS)
        return Reply()

    def query(self, request: Request, header: QueryConsumerOffset) -> Reply:
        broker = self._broker
        offset = broker.tables.offsets.query(header.consumer_group, header.topic, header.queue_id)
        if offset >= 0:
            return Reply(QueryConsumerOffsetResponse(offset=offset))
        if header.set_zero_if_not_found is False:
            raise MQError(
                ResponseCode.QUERY_NOT_FOUND, "Not found, do not set to zero, maybe this group boot first"
            )
        bounds = broker.store.queue_bounds(header.topic, header.queue_id)
        # The queue still has its first message: a new group gets all messages.
        if bounds.min_offset <= 0 < bounds.max_offset:
            return Reply(QueryConsumerOffsetResponse(offset=0))
        raise MQError(
            ResponseCode.QUERY_NOT_FOUND, "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"
        )

    def all_offsets(self, request: Request, header: GetAllConsumerOffset) -> Reply:
        return Reply(body=self._broker.tables.offsets.encode())

    def clone(self, request: Request, header: CloneGroupOffset) -> Reply:
        broker = self._broker
        topics = {header.topic} if header.topic else broker.tables.offsets.topics_of(header.src_group)
        subscribed = broker.tables.consumers.subscriptions(header.src_group)
        for topic in topics:
            if topic not in broker.tables.topics:
                log.warning("offsets not cloned, no such topic=%s", topic)
            elif not header.offline and subscribed and topic not in subscribed:
                log.warning("offsets not cloned, not subscribed group=%s topic=%s", header.src_group, topic)
            else:
                broker.tables.offsets.clone(header.src_group, header.dest_group, topic)
        return Reply()

    def correction(self, request: Request, header: QueryCorrectionOffset) -> Reply:
        """Least offset of the groups by queue; LONG_MAX where the compared group is behind all of them."""
        offsets, topic = self._broker.tables.offsets, header.topic
        left_out = {group for group in (header.filter_groups or "").split(",") if group}
        least: dict[int, int] = {}
        for group in offsets.groups_of(topic) - left_out:
            for queue_id, offset in offsets.of(group, topic).items():
                if offset >= self._broker.store.queue_bounds(topic, queue_id).min_offset:
                    least[queue_id] = min(least.get(queue_id, LONG_MAX), offset)
        for queue_id, offset in offsets.of(header.compare_group, topic).items():
            if least.get(queue_id, LONG_MAX) > offset:
                least[queue_id] = LONG_MAX
        return Reply(body=encode(QueryCorrectionOffsetBody(correction_offsets=least)))

    # -- a queue's offsets

    def max_offset(self, request: Request, header: GetMaxOffset) -> Outcome:
        def answer() -> Reply:
            bounds = self._broker.store.queue_bounds(header.topic, header.queue_id)
            return Reply(GetMaxOffsetResponse(offset=bounds.max_offset))

        return self._once_visible(answer)

    def min_offset(self, request: Request, header: GetMinOffset) -> Reply:
        bounds = self._broker.store.queue_bounds(header.topic, header.queue_id)
        return Reply(GetMinOffsetResponse(offset=bounds.min_offset))

    def search(self, request: Request, header: SearchOffset) -> Outcome:
        upper = (header.boundary_type or "").lower() == "upper"
        boundary = Boundary.UPPER if upper else Boundary.LOWER

        def answer() -> Reply:
            offset = self._broker.store.offset_by_time(
                header.topic, header.queue_id, header.timestamp, boundary
            )
            return Reply(SearchOffsetResponse(offset=offset))

        return self._once_visible(answer)

    def earliest(self, request: Request, header: GetEarliestMsgStoretime) -> Reply:
        timestamp = self._broker.store.earliest_message_time(header.topic, header.queue_id)
        return Reply(GetEarliestMsgStoretimeResponse(timestamp=timestamp))

    def _once_visible(self, answer: Callable[[], Reply]) -> Outcome:
        """The answer to a question about the end of a queue, which must never go back for consumers.

        A new master waits until all that it took over is confirmed, for its predecessor may have shown it.
        Raises SYSTEM_BUSY, also when awaited, while this broker has no role or cannot confirm it.
        """
        role = self._broker.role
        if role.kind is RoleKind.NONE:
            raise rejected(role, "questions about the ends of queues")
        return self._answer_later(answer) if self._hidden else answer()

    @property
    def _hidden(self) -> bool:
        role = self._broker.role
        return role.is_master and self._broker.store.dispatched_offset < role.log_start

    async def _answer_later(self, answer: Callable[[], Reply]) -> Reply:
        role = self._broker.role
        if self._waiting is None or self._waiting.done():
            self._waiting = asyncio.ensure_future(self._wait_until_visible())
        await asyncio.shield(self._waiting)
        if role.is_master and not self._hidden:
            return answer()
        raise rejected(role, "questions about the ends of queues until its log is confirmed")

    async def _wait_until_visible(self) -> None:
        """One for all requests that wait."""
        clock, role = self._broker.clock, self._broker.role
        deadline = clock.monotonic_ms() + VISIBLE_TIMEOUT_MS
        while self._hidden and not role.stopping and clock.monotonic_ms() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(VISIBLE_POLL_S)

    # -- resets

    async def reset(self, request: Request, header: ResetOffset) -> Reply:
        if self._broker.settings.broker.use_server_side_reset_offset:
            reply = self._reset_here(header)
            await self._broker.tables.durable()
            return reply
        return self._reset_in_clients(header, request.command.language == LanguageCode.CPP)

    def all_resets(self, request: Request, header: GetAllResetOffset) -> Reply:
        return Reply(body=self._broker.tables.offsets.encode_resets())

    def _target(self, header: ResetOffset, queue_id: int) -> int:
        store = self._broker.store
        if header.timestamp < 0:
            return store.queue_bounds(header.topic, queue_id).max_offset
        return store.offset_by_time(header.topic, queue_id, header.timestamp, Boundary.LOWER)

    def _reset_here(self, header: ResetOffset) -> Reply:
        broker, group, topic = self._broker, header.group, header.topic
        if not broker.role.is_master:
            raise MQError(ResponseCode.SYSTEM_ERROR, "Can not reset offset in slave broker")
        config = broker.tables.topics.get(topic)
        if config is None:
            raise MQError(ResponseCode.TOPIC_NOT_EXIST, f"Topic {topic} does not exist")
        if group not in broker.tables.subscriptions:
            raise MQError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {group} does not exist")
        targets: dict[int, int] = {}
        if header.queue_id < 0:
            targets = {queue_id: self._target(header, queue_id) for queue_id in range(config.read_queue_nums)}
        elif header.offset is None or header.offset == -1:
            targets[header.queue_id] = self._target(header, header.queue_id)
        else:
            bounds = broker.store.queue_bounds(topic, header.queue_id)
            if not bounds.min_offset <= header.offset <= bounds.max_offset + 1:
                raise MQError(
                    ResponseCode.SYSTEM_ERROR,
                    f"Target offset {header.offset} not in consume queue range "
                    f"[{bounds.min_offset}-{bounds.max_offset}]",
                )
            targets[header.queue_id] = header.offset
        if not targets:
            raise MQError(ResponseCode.SYSTEM_ERROR, "No queues to reset.")
        for queue_id, offset in targets.items():
            broker.tables.offsets.reset(group, topic, queue_id, offset)
        log.info("offsets reset group=%s topic=%s offsets=%s", group, topic, targets)
        return Reply(body=encode(ResetOffsetBody(offset_table=self._by_queue(topic, targets))))

    def _reset_in_clients(self, header: ResetOffset, as_list: bool) -> Reply:
        """Tell the connected consumers. `as_list`: they are C++ clients, as the tool says by its language."""
        broker, group, topic = self._broker, header.group, header.topic
        config = broker.tables.topics.get(topic)
        if config is None:
            raise MQError(
                ResponseCode.TOPIC_NOT_EXIST,
                f"[reset-offset] reset offset failed, no topic in this broker. topic={topic}",
            )
        targets: dict[int, int] = {}
        for queue_id in range(config.write_queue_nums):
            consumed = broker.tables.offsets.query(group, topic, queue_id)
            if consumed < 0:
                raise MQError(ResponseCode.SYSTEM_ERROR, f"THe consumer group <{group}> not exist")
            target = max(0, self._target(header, queue_id))
            targets[queue_id] = target if header.is_force or target < consumed else consumed
        connections = broker.tables.consumers.connections(group)
        if not connections:
            raise MQError(
                ResponseCode.CONSUMER_NOT_ONLINE,
                f"Consumer not online, so can not reset offset, Group: {group} Topic: {topic} "
                f"Timestamp: {header.timestamp}",
            )
        body = encode(ResetOffsetBody(offset_table=self._by_queue(topic, targets)))
        pushed = body
        if as_list:
            name = broker.settings.broker.broker_name
            pushed = encode(
                ResetOffsetBodyForC([MessageQueueForC(topic, name, *target) for target in targets.items()])
            )
        for connection in connections:
            connection.oneway(
                ResetConsumerClientOffset(topic=topic, group=group, timestamp=header.timestamp), pushed
            )
        return Reply(body=body)

    def _by_queue(self, topic: str, offsets: dict[int, int]) -> dict[MessageQueue, int]:
        name = self._broker.settings.broker.broker_name
        return {
            MessageQueue(topic=topic, broker_name=name, queue_id=queue_id): offset
            for queue_id, offset in offsets.items()
        }
