"""Answers requests of brokers to a consumer, most of them sent for mqadmin."""

from __future__ import annotations

from batonmq.client.push.answers import consume_directly, running_properties, stacks
from batonmq.client.push.assignment import Assignment
from batonmq.client.push.handlers import Handlers
from batonmq.client.push.subscriptions import Subscriptions
from batonmq.client.session import ClientSession
from batonmq.net.dispatch import Dispatcher, Reply, Request
from batonmq.protocol.bodies.clients import (
    ConsumerRunningInfo,
    ConsumeType,
    GetConsumerStatusBody,
    ProcessQueueInfo,
    ResetOffsetBody,
)
from batonmq.protocol.headers.client import (
    ConsumeMessageDirectly,
    GetConsumerRunningInfo,
    GetConsumerStatusFromClient,
    NotifyConsumerIdsChanged,
    ResetConsumerClientOffset,
)
from batonmq.protocol.json import decode, encode


class BrokerRequests:
    """Answers them, for as long as there are connections."""

    def __init__(
        self,
        session: ClientSession,
        group: str,
        subscriptions: Subscriptions,
        handlers: Handlers,
        assignment: Assignment,
        *,
        orderly: bool,
        concurrency: int,
    ) -> None:
        self._session = session
        self._group = group
        self._subscriptions = subscriptions
        self._handlers = handlers
        self._assignment = assignment
        self._orderly = orderly
        self._concurrency = concurrency
        self.start_ms = 0
        """When the consumer was started."""

    def bind(self, dispatcher: Dispatcher) -> None:
        dispatcher.on(NotifyConsumerIdsChanged, self._ids_changed)
        dispatcher.on(ResetConsumerClientOffset, self._reset_offsets)
        dispatcher.on(GetConsumerRunningInfo, self._running_info)
        dispatcher.on(GetConsumerStatusFromClient, self._status)
        dispatcher.on(ConsumeMessageDirectly, self._consume_directly)

    def _ids_changed(self, request: Request, header: NotifyConsumerIdsChanged) -> None:
        if header.consumer_group == self._group:
            self._assignment.rebalance_soon()

    def _reset_offsets(self, request: Request, header: ResetConsumerClientOffset) -> Reply:
        """mqadmin resetOffsetByTime: continue from other offsets."""
        self._assignment.reset(decode(request.command.body, ResetOffsetBody).offset_table)
        return Reply()

    def _running_info(self, request: Request, header: GetConsumerRunningInfo) -> Reply:
        info = ConsumerRunningInfo(
            properties=running_properties(
                self._session,
                self.start_ms,
                ConsumeType.PASSIVELY,
                orderly=self._orderly,
                concurrency=self._concurrency,
            ),
            subscription_set=[subscription.data for subscription in self._subscriptions.values()],
            mq_table={
                queue: ProcessQueueInfo(
                    commit_offset=held.buffer.commit_offset,
                    cached_msg_count=held.buffer.count,
                    cached_msg_size_in_mib=held.buffer.size >> 20,
                    locked=held.locked_until > 0,
                    droped=held.dropped,
                    last_pull_timestamp=held.last_pull_ms,
                    last_consume_timestamp=held.last_consume_ms,
                )
                for queue, held in self._assignment.queues.items()
            },
        )
        if header.jstack_enable:
            info.jstack = stacks()
        return Reply(body=encode(info))

    def _status(self, request: Request, header: GetConsumerStatusFromClient) -> Reply:
        """mqadmin consumerStatus: the next offset to commit of each queue of a topic."""
        table = {
            queue: held.buffer.commit_offset
            for queue, held in self._assignment.queues.items()
            if queue.topic == header.topic
        }
        return Reply(body=encode(GetConsumerStatusBody(message_queue_table=table)))

    async def _consume_directly(self, request: Request, header: ConsumeMessageDirectly) -> Reply:
        return await consume_directly(
            request,
            header,
            handlers=self._handlers,
            subscriptions=self._subscriptions,
            orderly=self._orderly,
            clock=self._session.clock,
        )
