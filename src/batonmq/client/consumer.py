"""Consuming as one of a group, push style: handlers are called with messages.

Every client of a group takes its share of the queues (`push/assignment.py`), pulls them ahead
(`push/pulling.py`), has handlers work on them (`push/handling.py`) and commits what is done. When a master is
lost, pulling continues from the new one at the same offset. Delivery is at least once: a message whose
handler failed is delivered again later, and after a crash those not committed are.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Self

from batonmq.client.filter import Expression
from batonmq.client.hooks import Hook
from batonmq.client.offsets import GroupOffsets, LocalOffsets, OffsetStore
from batonmq.client.push.assigned import Assigned
from batonmq.client.push.assignment import Assignment
from batonmq.client.push.handlers import Handlers
from batonmq.client.push.handling import Concurrently, Handling, InOrder
from batonmq.client.push.heartbeats import Heartbeats, find_topics
from batonmq.client.push.locks import QueueLocks
from batonmq.client.push.outages import Outages
from batonmq.client.push.pulling import Puller, PullLimits
from batonmq.client.push.requests import BrokerRequests
from batonmq.client.push.retries import RetryLater, SendBack
from batonmq.client.push.route_watch import RouteWatch
from batonmq.client.push.start_offsets import StartOffsets
from batonmq.client.push.subscriptions import (
    BatchHandler,
    Handler,
    Subscription,
    for_retried,
    subscribe,
)
from batonmq.client.push.tasks import Once, cancel, spawn
from batonmq.client.replies import Replies
from batonmq.client.session import ClientSession
from batonmq.common.clock import Clock
from batonmq.net.client import RemotingClient
from batonmq.net.dispatch import Dispatcher
from batonmq.protocol.bodies.clients import ConsumeFromWhere, MessageModel
from batonmq.protocol.bodies.common import MessageQueue
from batonmq.protocol.codes import ALL_TAGS
from batonmq.protocol.message.record import MessageExt
from batonmq.protocol.names import check_group, retry_topic
from batonmq.protocol.signing import Credentials
from batonmq.protocol.tags import tag_subscription
from batonmq.routing.routes import TopicRoute

__all__ = ["BatchHandler", "Consumer", "Handler", "RetryLater"]


class Consumer:
    """A member of a consumer group.

        consumer = Consumer("group", namesrv="127.0.0.1:9876")
        consumer.subscribe("orders", "paid || sent", handle)
        async with consumer:
            await asyncio.Event().wait()

    Args:
        group: all clients of a group must have the same subscriptions.
        model: CLUSTERING shares the messages in the group, BROADCASTING gives every client all of them.
        from_where: where a group that never committed begins; ``from_timestamp_ms`` belongs to TIMESTAMP.
        orderly: one call for a queue at a time, in order, retried in place; the broker locks the queues.
        concurrency: handler calls at the same time (unless ``orderly``: one for each queue).
        max_reconsume_times: attempts before the dead letter topic; None is 16, or no end when ``orderly``.
        pull_batch_size: messages asked for in one pull.
        max_cached_messages, max_cached_bytes: of one queue, pulled ahead; no more is pulled beyond that.
            Bodies count inflated.
        offsets_dir: where BROADCASTING keeps its offsets; each consumer of a group needs its own.
        client_ip: this machine's address in the client id; found out when None.
        hooks: code around each call of a handler (`client/hooks.py`): traces, metrics.
        suspend_ms: before an ordered message is tried again, or a queue is locked that another client has.
        stop_timeout_s: how long `stop` waits for handlers that run.
    """

    def __init__(
        self,
        group: str,
        namesrv: str | Iterable[str],
        *,
        model: MessageModel = MessageModel.CLUSTERING,
        from_where: ConsumeFromWhere = ConsumeFromWhere.LAST_OFFSET,
        from_timestamp_ms: int = 0,
        orderly: bool = False,
        concurrency: int = 20,
        max_reconsume_times: int | None = None,
        pull_batch_size: int = 32,
        max_cached_messages: int = 1_000,
        max_cached_bytes: int = 100 * 1024 * 1024,
        max_span: int = 2_000,
        commit_interval_ms: int = 5_000,
        suspend_ms: int = 1_000,
        stop_timeout_s: float = 30.0,
        offsets_dir: str = "~/.batonmq/offsets",
        poll_interval_ms: int = 30_000,
        client_ip: str | None = None,
        hooks: Iterable[Hook] = (),
        tls: ssl.SSLContext | None = None,
        credentials: Credentials | None = None,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        remoting: RemotingClient | None = None,
    ) -> None:
        check_group(group)
        self.group = group
        dispatcher = Dispatcher()
        session = ClientSession(
            namesrv,
            tls=tls,
            credentials=credentials,
            clock=clock,
            rng=rng,
            poll_interval_ms=poll_interval_ms,
            dispatcher=dispatcher,
            remoting=remoting,
            ip=client_ip,
        )
        session.on_route = self._route_changed
        self._session = session
        self._model = model
        self._commit_interval_s = commit_interval_ms / 1000
        self._stop_timeout_s = stop_timeout_s
        self._offsets: OffsetStore = (
            GroupOffsets(session, group, slaves=True)
            if model is MessageModel.CLUSTERING
            else LocalOffsets(offsets_dir, group)
        )
        subscriptions: dict[str, Subscription] = {}
        self._subscriptions = subscriptions
        suspend_s = suspend_ms / 1000
        send_back = SendBack(session, group, max_reconsume_times)
        handlers = Handlers(subscriptions, group, session.client_id, tuple(hooks))
        outages = Outages()
        self._replies: Replies | None = None
        self._locks: QueueLocks | None = None
        self._handling: Handling
        if orderly:
            locks = self._locks = QueueLocks(session, group, suspend_s, outages)
            self._handling = InOrder(
                subscriptions, handlers, session.clock, locks, send_back, max_reconsume_times, suspend_s
            )
        else:
            self._handling = Concurrently(
                subscriptions, handlers, session.clock, model, send_back, concurrency
            )
        self._heartbeats = Heartbeats(session, group, subscriptions, model, from_where)
        self._puller = Puller(
            session,
            group,
            subscriptions,
            model,
            PullLimits(pull_batch_size, max_cached_messages, max_cached_bytes, max_span),
            start_offsets=StartOffsets(session, self._offsets, from_where, from_timestamp_ms),
            outages=outages,
            heartbeats=self._heartbeats,
            locks=self._locks,
            handling=self._handling,
            send_back=send_back,
            reset=lambda offsets: self._assignment.reset(offsets),
        )
        self._assignment = Assignment(
            session,
            group,
            subscriptions,
            model,
            offsets=self._offsets,
            heartbeats=self._heartbeats,
            locks=self._locks,
            outages=outages,
            begin=self._begin,
        )
        self._watch = RouteWatch(session, outages, lambda: self._assignment.queues)
        self._requests = BrokerRequests(
            session,
            group,
            subscriptions,
            handlers,
            self._assignment,
            orderly=orderly,
            concurrency=concurrency,
        )
        self._requests.bind(dispatcher)
        self._tasks: set[asyncio.Task[None]] = set()
        self._upkeep: set[asyncio.Task[None]] = set()
        """Goes on until the last handler has returned: the broker would give its queue to another client."""
        self._started = False
        self._stop_once = Once(self._stop)

    def subscribe(
        self,
        topic: str,
        expression: Expression,
        handler: Handler | BatchHandler,
        *,
        batch_size: int | None = None,
    ) -> None:
        """Have a handler called with each message of a topic whose tag fits (``*``, ``a``, ``a || b``).

        With `sql` the properties decide; brokers check the expression when the consumer starts.

        A handler that returns has handled the message; one that raises gets it again later (`RetryLater`
        says when). It may be a coroutine function; a plain one must not block. With ``batch_size`` it is
        called with a list of up to so many messages, which succeed or fail together.

        Raises:
            ValueError: the topic is subscribed already or a light queue, the expression names no tag, or
                ``batch_size`` is less than 1.
            MQError: the topic's name is not allowed.
        """
        if self._started:
            raise RuntimeError("subscribe before the consumer is started")
        now_ms = self._session.clock.now_ms()
        subscribe(self._subscriptions, topic, expression, handler, batch_size, now_ms)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Join the group and begin.

        A topic that does not exist is waited for, and consumed once it is created. Raises `NoNameServer` when
        no name server answers within a few seconds, `MQError` when a broker does not take an SQL expression,
        `OSError` when BROADCASTING cannot use its file of offsets: another consumer does, or it is damaged.
        """
        if not self._subscriptions:
            raise RuntimeError("subscribe to something before the consumer is started")
        self._started = True
        session = self._session
        start_ms = self._requests.start_ms = session.clock.now_ms()
        try:
            await session.name_servers.connect()
            await find_topics(session, self.group, self._subscriptions)
            self._offsets.open()
        except BaseException:
            self._offsets.close()
            await session.close()
            raise
        if self._model is MessageModel.CLUSTERING:
            retry = retry_topic(self.group)
            self._subscriptions[retry] = Subscription(
                tag_subscription(retry, ALL_TAGS, start_ms), for_retried(self._subscriptions), 1
            )
        await self._heartbeats.send()
        await self._assignment.rebalance()
        spawn(self._assignment.run(), self._tasks)
        spawn(self._watch.run(), self._tasks)
        spawn(self._heartbeats.run(), self._upkeep)
        spawn(self._assignment.commit(self._commit_interval_s), self._upkeep)
        if self._locks is not None:
            spawn(self._locks.renew(self._assignment.held), self._upkeep)
        self._handling.start()

    async def stop(self) -> None:
        """Stop pulling, let running handlers end (``stop_timeout_s``), commit, leave the group.

        Returns when that is done, also to those that call it meanwhile. A call that was cancelled can be
        repeated.
        """
        await self._stop_once()

    async def _stop(self) -> None:
        await cancel(self._tasks)
        dropped = await self._assignment.stop()
        await self._handling.stop(self._stop_timeout_s)
        await cancel(task for held in dropped for task in held.tasks)
        await cancel(self._upkeep)
        if self._started:
            await self._assignment.give_up(dropped)
            await self._heartbeats.unregister()
        self._offsets.close()
        await self._session.close()

    async def reply(
        self,
        message: MessageExt,
        body: bytes | bytearray | memoryview,
        *,
        properties: Mapping[str, str] | None = None,
        timeout_ms: int = 3_000,
    ) -> None:
        """Reply to a message that was sent with `Producer.request`; see `Producer.reply`."""
        if self._replies is None:
            self._replies = Replies(self._session, self.group)
        await self._replies.send(message, body, properties, timeout_ms)

    @property
    def client_id(self) -> str:
        """What brokers know this client by."""
        return self._session.client_id

    @property
    def assigned(self) -> list[MessageQueue]:
        """The queues that are this client's now."""
        return sorted(self._assignment.queues)

    def _begin(self, held: Assigned) -> None:
        spawn(self._puller.run(held), held.tasks)
        self._handling.begin(held)

    def _route_changed(self, topic: str, route: TopicRoute) -> None:
        self._heartbeats.route_changed(route)
        self._watch.route_changed(topic, route)
        self._assignment.rebalance_soon()
