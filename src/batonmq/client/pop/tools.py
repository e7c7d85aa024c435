"""Answers requests of brokers to a pop consumer, most of them sent for mqadmin."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from batonmq.client.push.answers import consume_directly, running_properties, stacks
from batonmq.client.push.handlers import Handlers
from batonmq.client.push.subscriptions import Subscribed, Subscriptions
from batonmq.client.push.tasks import log
from batonmq.client.session import ClientSession
from batonmq.net.dispatch import Dispatcher, Reply, Request
from batonmq.net.errors import NetError
from batonmq.protocol.bodies.clients import (
    ConsumerRunningInfo,
    ConsumeType,
    GetConsumerStatusBody,
    PopProcessQueueInfo,
    ResetOffsetBody,
)
from batonmq.protocol.bodies.common import MessageQueue
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.pull import UpdateConsumerOffset
from batonmq.protocol.headers.client import (
    ConsumeMessageDirectly,
    GetConsumerRunningInfo,
    GetConsumerStatusFromClient,
    NotifyConsumerIdsChanged,
    ResetConsumerClientOffset,
)
from batonmq.protocol.json import decode, encode


class PopTools:
    """Answers them, for as long as there are connections.

    `popped`: how many messages of each broker and topic wait for their ack. `handlers` is None for a consumer
    that has none.
    """

    def __init__(
        self,
        session: ClientSession,
        group: str,
        subscriptions: Mapping[str, Subscribed],
        *,
        consume_type: ConsumeType,
        orderly: bool,
        concurrency: int,
        popped: Callable[[], Mapping[MessageQueue, PopProcessQueueInfo]],
    ) -> None:
        self._session = session
        self._group = group
        self._subscriptions = subscriptions
        self._consume_type = consume_type
        self._orderly = orderly
        self._concurrency = concurrency
        self._popped = popped
        self._handled: tuple[Handlers, Subscriptions] | None = None
        self.start_ms = 0
        """When the consumer was started."""

    def handle_by(self, handlers: Handlers, subscriptions: Subscriptions) -> None:
        """Messages that a tool sends go to these handlers; without, they are refused."""
        self._handled = handlers, subscriptions

    def bind(self, dispatcher: Dispatcher) -> None:
        dispatcher.on(NotifyConsumerIdsChanged, self._ids_changed)
        dispatcher.on(ResetConsumerClientOffset, self._reset_offsets)
        dispatcher.on(GetConsumerRunningInfo, self._running_info)
        dispatcher.on(GetConsumerStatusFromClient, self._status)
        dispatcher.on(ConsumeMessageDirectly, self._consume_directly)

    def _ids_changed(self, request: Request, header: NotifyConsumerIdsChanged) -> None:
        """Who else pops changes nothing for this client: no queue is assigned to anybody."""

    async def _reset_offsets(self, request: Request, header: ResetConsumerClientOffset) -> Reply:
        """mqadmin resetOffsetByTime, of a broker with `useServerSideResetOffset=false`.

        Where pops begin is the broker's to know, so the offsets are committed there. Java's consumers ignore
        the request when they pop.
        """
        table = decode(request.command.body, ResetOffsetBody).offset_table
        for queue, offset in table.items():
            if queue.topic not in self._subscriptions:
                continue
            commit = UpdateConsumerOffset(self._group, queue.topic, queue.queue_id, offset)
            try:
                await self._session.call_for(queue, commit)
            except (NetError, MQError) as error:
                log.warning("the offset of %s is not reset to %d: %s", queue, offset, error)
        return Reply()

    def _running_info(self, request: Request, header: GetConsumerRunningInfo) -> Reply:
        properties = running_properties(
            self._session,
            self.start_ms,
            self._consume_type,
            orderly=self._orderly,
            concurrency=self._concurrency,
        )
        info = ConsumerRunningInfo(
            properties=properties,
            subscription_set=[subscription.data for subscription in self._subscriptions.values()],
            mq_pop_table=dict(self._popped()),
        )
        if header.jstack_enable:
            info.jstack = stacks()
        return Reply(body=encode(info))

    def _status(self, request: Request, header: GetConsumerStatusFromClient) -> Reply:
        """mqadmin consumerStatus: the offsets of its queues. It has none, as Java's consumers when they
        pop."""
        return Reply(body=encode(GetConsumerStatusBody()))

    async def _consume_directly(self, request: Request, header: ConsumeMessageDirectly) -> Reply:
        if self._handled is None:
            raise MQError(
                ResponseCode.SYSTEM_ERROR, f"The consumer of group <{self._group}> has no message handler"
            )
        handlers, subscriptions = self._handled
        return await consume_directly(
            request,
            header,
            handlers=handlers,
            subscriptions=subscriptions,
            orderly=self._orderly,
            clock=self._session.clock,
        )
