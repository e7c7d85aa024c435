"""Consuming on demand: receive messages, handle them, acknowledge each.

Messages that were received are hidden from the rest of the group for a while. Those that are not acknowledged
by then are delivered again. Nothing is assigned to clients: every client of the group can get every message.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Self

from batonmq.client.filter import Expression, subscription_data
from batonmq.client.filter_check import check_subscription
from batonmq.client.pop.requests import PopOptions, PopRequests
from batonmq.client.pop.sources import Source, Sources, log
from batonmq.client.pop.tools import PopTools
from batonmq.client.push.heartbeats import Heartbeats
from batonmq.client.push.outages import LASTING_PAUSE_S, Outages
from batonmq.client.push.route_watch import RouteWatch
from batonmq.client.push.tasks import cancel, spawn
from batonmq.client.session import ClientSession
from batonmq.common.clock import Clock
from batonmq.net.client import RemotingClient
from batonmq.net.dispatch import Dispatcher
from batonmq.net.errors import NetError
from batonmq.protocol.bodies.clients import ConsumeFromWhere, ConsumeType, MessageModel, SubscriptionData
from batonmq.protocol.errors import MQError
from batonmq.protocol.message.errors import MessageFormatError
from batonmq.protocol.message.record import MessageExt
from batonmq.protocol.names import check_group, check_topic
from batonmq.protocol.pop import MAX_MESSAGES
from batonmq.protocol.signing import Credentials
from batonmq.routing.routes import TopicRoute
from batonmq.routing.session import OUTAGE_POLL_S

MAX_INVISIBLE_S = 12 * 3600
"""As RocketMQ's proxy allows."""


@dataclass(frozen=True, slots=True)
class _Subscribed:
    data: SubscriptionData


@dataclass(slots=True)
class _Late:
    """Messages of a `receive` that was cancelled before they came."""

    messages: list[MessageExt]
    until: float
    """Loop time; from then on the rest of their invisible time is too short to handle them."""


class SimpleConsumer:
    """A member of a consumer group that asks for messages when it has time for them.

        async with SimpleConsumer("billing", namesrv) as consumer:
            consumer.subscribe("orders")
            while True:
                for message in await consumer.receive(wait=20):
                    await store(message.body)
                    await consumer.ack(message)

    Args:
        invisible_duration: how long received messages are hidden from others; a `timedelta` or seconds.
        from_where: FIRST_OFFSET or LAST_OFFSET, where a group that never consumed begins.
        orderly: messages of a queue in order: the next ones come when all received ones are acknowledged.
        client_ip: this machine's address in the client id; found out when None.

    `receive` waits at all brokers of all topics at once and answers with the first messages.
    """

    def __init__(
        self,
        group: str,
        namesrv: str | Iterable[str],
        *,
        invisible_duration: timedelta | float = 30,
        from_where: ConsumeFromWhere = ConsumeFromWhere.LAST_OFFSET,
        orderly: bool = False,
        poll_interval_ms: int = 30_000,
        client_ip: str | None = None,
        tls: ssl.SSLContext | None = None,
        credentials: Credentials | None = None,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        remoting: RemotingClient | None = None,
    ) -> None:
        check_group(group)
        self.group = group
        if from_where is ConsumeFromWhere.TIMESTAMP:
            raise ValueError("a pop begins at FIRST_OFFSET or LAST_OFFSET, not at a TIMESTAMP")
        self._invisible_ms = invisible_ms(invisible_duration)
        dispatcher = Dispatcher()
        session = self._session = ClientSession(
            namesrv,
            dispatcher=dispatcher,
            tls=tls,
            credentials=credentials,
            clock=clock,
            rng=rng,
            poll_interval_ms=poll_interval_ms,
            remoting=remoting,
            ip=client_ip,
        )
        session.on_route = self._route_changed
        self._subscriptions: dict[str, _Subscribed] = {}
        self._requests = PopRequests(session, group, PopOptions(from_where, orderly))
        self._heartbeats = Heartbeats(
            session,
            group,
            self._subscriptions,
            MessageModel.CLUSTERING,
            from_where,
            ConsumeType.ACTIVELY,
        )
        self._tools = PopTools(
            session,
            group,
            self._subscriptions,
            consume_type=ConsumeType.ACTIVELY,
            orderly=orderly,
            concurrency=1,
            popped=dict,
        )
        self._tools.bind(dispatcher)
        self._waiting = 0
        self._outages = Outages()
        self._sources = Sources(session, self._requests, self._outages, self._data, lambda: self._waiting > 0)
        self._watch = RouteWatch(session, self._outages, self._sources.queues)
        self._late: list[_Late] = []
        self._pops: set[asyncio.Task[list[MessageExt]]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._started = self._closing = False

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def start(self) -> None:
        """Join the group. Raises `NoNameServer` when no name server answers within a few seconds."""
        try:
            await self._session.name_servers.connect()
        except BaseException:
            await self._session.close()
            raise
        self._started = True
        self._tools.start_ms = self._session.clock.now_ms()
        spawn(self._heartbeats.run(), self._tasks)
        spawn(self._watch.run(), self._tasks)

    async def close(self) -> None:
        """Leave the group. Messages that were received and not acknowledged come again, to other clients."""
        if self._session.closed:
            return
        self._closing = True
        self._sources.notify()
        await cancel(self._tasks)
        await self._sources.close()
        if self._pops:
            await asyncio.wait(self._pops, timeout=1.0)
        for pop in list(self._pops):
            pop.cancel()
        await asyncio.gather(*self._pops, return_exceptions=True)
        for late in self._late:
            await self._give_back(late.messages)
        if self._started:
            await self._heartbeats.unregister()
        await self._session.close()

    @property
    def client_id(self) -> str:
        """What brokers know this client by."""
        return self._session.client_id

    def subscribe(self, topic: str, expression: Expression = "*") -> None:
        """Receive a topic's messages whose tags fit (``*``, ``a || b``), or whose properties do (`sql`).

        A second call for a topic replaces the expression.

        Raises:
            ValueError: the expression names no tag, or the topic is a light queue.
            MQError: the topic's name is not allowed.
        """
        check_topic(topic)
        data = subscription_data(topic, expression, self._session.clock.now_ms())
        self._subscriptions[topic] = _Subscribed(data)
        self._heartbeats.soon()

    def unsubscribe(self, topic: str) -> None:
        """Receive no more messages of a topic."""
        self._subscriptions.pop(topic, None)
        self._heartbeats.soon()

    async def receive(
        self,
        max_messages: int = MAX_MESSAGES,
        *,
        invisible_duration: timedelta | float | None = None,
        wait: timedelta | float = 20,
    ) -> list[MessageExt]:
        """Up to ``max_messages`` (32 at most) of one broker; empty when none came within ``wait``.

        Raises:
            TopicNotExistError: a subscribed topic does not exist.
            MQError: a broker refuses, for one because it does not know the SQL expression; a topic is static.
            NetError: no broker answered within ``wait``, or the consumer is closed.
        """
        if max_messages < 1:
            raise ValueError(f"max_messages is {max_messages}")
        if not self._started or not self._subscriptions:
            raise RuntimeError("start the consumer and subscribe to something before you receive")
        hidden_ms = self._invisible_ms if invisible_duration is None else invisible_ms(invisible_duration)
        late = self._take_late(max_messages)
        if late:
            return late
        seconds = wait.total_seconds() if isinstance(wait, timedelta) else wait
        self._waiting += 1
        try:
            return await self._receive(min(max_messages, MAX_MESSAGES), hidden_ms, seconds)
        finally:
            self._waiting -= 1

    async def _receive(self, count: int, hidden_ms: int, wait_s: float) -> list[MessageExt]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_s
        answered = False
        while True:
            if self._closing:
                raise self._session.closed_error()
            failure: Exception | None = None
            failing: list[Source] = []
            ready = self._sources.ready
            topics = list(self._subscriptions)
            for topic in topics:
                if self._session.known_route(topic) is None:
                    await self._begin(topic)
            for source in self._sources.all(topics):
                if not source.may_have:
                    answered = True
                    continue
                try:
                    messages = await self._pop(source, count, hidden_ms)
                except (NetError, MQError) as error:
                    if isinstance(error, MQError) and not error.retryable:
                        raise
                    failure = error
                    failing.append(source)
                    self._outages.failed(source.broker_name, loop.time())
                    continue
                answered = True
                self._outages.worked(source.broker_name, loop.time())
                if messages:
                    return messages
                self._sources.empty(source)
            left_s = deadline - loop.time()
            if left_s <= 0:
                if failure is not None and not answered:
                    raise failure
                return []
            if failure is not None:
                lasts = all(self._outages.lasts(source.broker_name) for source in failing)
                pause_s = LASTING_PAUSE_S if lasts else OUTAGE_POLL_S
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(pause_s, left_s)):
                        await ready.wait()
                if not lasts:  # else `RouteWatch` asks
                    for topic in dict.fromkeys(source.topic for source in failing):
                        await self._session.refresh_or_known(topic)
                continue
            try:
                async with asyncio.timeout(left_s):
                    await ready.wait()
            except TimeoutError:
                return []

    async def _begin(self, topic: str) -> None:
        await self._session.refresh(topic)
        session = self._session
        await check_subscription(session, session.client_id, self.group, self._subscriptions[topic].data)
        await self._heartbeats.send()

    async def _pop(self, source: Source, count: int, hidden_ms: int) -> list[MessageExt]:
        """A pop that is not lost when `receive` is cancelled: the next `receive` gets its messages."""
        data = self._data(source.topic)
        if data is None:
            return []
        loop = asyncio.get_running_loop()
        began = loop.time()
        pop = loop.create_task(
            self._requests.pop(source.broker_name, data, count=count, invisible_ms=hidden_ms)
        )
        self._pops.add(pop)
        pop.add_done_callback(self._pops.discard)
        try:
            await asyncio.wait([pop])
        except asyncio.CancelledError:
            pop.add_done_callback(lambda done: self._keep(done, began + hidden_ms / 2000))
            raise
        if pop.cancelled():
            raise self._session.closed_error()
        try:
            return pop.result()
        except MessageFormatError as error:
            # They come again after their invisible time, perhaps to a client that can read them.
            log.error("messages of %s from %s cannot be read: %s", source.topic, source.broker_name, error)
            return []

    def _keep(self, pop: asyncio.Task[list[MessageExt]], until: float) -> None:
        if pop.cancelled():
            return
        error = pop.exception()
        if error is not None:
            log.info("a pop whose receive was cancelled failed: %s", error)
        elif pop.result():
            self._late.append(_Late(pop.result(), until))

    def _take_late(self, count: int) -> list[MessageExt]:
        now = asyncio.get_running_loop().time()
        while self._late:
            late = self._late[0]
            if late.until < now:
                self._late.pop(0)
                continue
            taken, late.messages = late.messages[:count], late.messages[count:]
            if not late.messages:
                self._late.pop(0)
            return taken
        return []

    async def _give_back(self, messages: list[MessageExt]) -> None:
        for message in messages:
            try:
                await self._requests.change_invisible(message, 1, timeout_ms=500, suspend=True)
            except (NetError, MQError) as error:
                log.info("message %s will be delivered again later: %s", message.message_id, error)

    async def ack(self, messages: MessageExt | Iterable[MessageExt], *, timeout_ms: int = 3_000) -> None:
        """The messages are consumed. An ack after the invisible time does not prevent another delivery.

        Several messages take one request for each broker.

        Raises:
            ValueError: a message was not received by this kind of consumer.
            MQError: a broker refused; NO_MESSAGE if it does not know the message.
            NetError: a broker did not answer within the timeout.
        """
        await self._requests.ack(
            [messages] if isinstance(messages, MessageExt) else messages, timeout_ms=timeout_ms
        )

    async def change_invisible_duration(
        self, message: MessageExt, duration: timedelta | float, *, timeout_ms: int = 3_000
    ) -> None:
        """Hide a message for so long from now on: longer to have time for it, or shorter.

        The message's receipt is replaced, so acknowledge this object, not a copy. Raises as `ack`.
        """
        await self._requests.change_invisible(message, invisible_ms(duration), timeout_ms=timeout_ms)

    def _data(self, topic: str) -> SubscriptionData | None:
        found = self._subscriptions.get(topic)
        return None if found is None else found.data

    def _route_changed(self, topic: str, route: TopicRoute) -> None:
        self._heartbeats.route_changed(route)
        self._watch.route_changed(topic, route)
        self._sources.notify()


def invisible_ms(duration: timedelta | float) -> int:
    """Raises ValueError unless it is more than 0 and at most 12 hours."""
    seconds = duration.total_seconds() if isinstance(duration, timedelta) else duration
    if not 0 < seconds <= MAX_INVISIBLE_S:
        raise ValueError(f"the invisible duration of {seconds} s is not in 0..{MAX_INVISIBLE_S} s")
    return max(1, round(seconds * 1000))
