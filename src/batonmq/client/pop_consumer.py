"""Consuming by pop, push style: handlers are called with messages, and no queue is assigned to a client.

All clients of a group pop all brokers, so a slow client holds nothing back, a client that comes or goes moves
no queues, and there can be more clients than queues. A message stays hidden while its handler works
(renewal), is acknowledged when it returns, and comes again later when it raises.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Iterable, Mapping
from datetime import timedelta
from types import TracebackType
from typing import Self

from batonmq.client.filter import Expression
from batonmq.client.hooks import Hook
from batonmq.client.pop.received import receipt_of
from batonmq.client.pop.requests import ANY_QUEUE, TO_DEAD_LETTERS, PopOptions, PopRequests
from batonmq.client.pop.settling import Acks, InFlight, Renewal, retry_delay_s
from batonmq.client.pop.sources import brokers_to_pop
from batonmq.client.pop.tools import PopTools
from batonmq.client.push.handlers import Handlers
from batonmq.client.push.handling import Calls
from batonmq.client.push.heartbeats import Heartbeats, find_topics
from batonmq.client.push.outages import Outages, pause
from batonmq.client.push.retries import DEFAULT_MAX_RECONSUME, RetryLater
from batonmq.client.push.route_watch import RouteWatch
from batonmq.client.push.subscriptions import BatchHandler, Handler, Subscription, subscribe
from batonmq.client.push.tasks import Once, cancel, log, spawn
from batonmq.client.replies import Replies
from batonmq.client.session import ClientSession
from batonmq.client.simple_consumer import invisible_ms
from batonmq.common.clock import Clock
from batonmq.net.client import RemotingClient
from batonmq.net.dispatch import Dispatcher
from batonmq.net.errors import NetError
from batonmq.protocol.bodies.clients import (
    ConsumeFromWhere,
    ConsumeType,
    MessageModel,
    PopProcessQueueInfo,
)
from batonmq.protocol.bodies.common import MessageQueue
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.message.errors import MessageFormatError
from batonmq.protocol.message.record import MessageExt
from batonmq.protocol.names import check_group
from batonmq.protocol.pop import MAX_MESSAGES
from batonmq.protocol.signing import Credentials
from batonmq.routing.routes import TopicRoute
from batonmq.routing.session import OUTAGE_POLL_S

POLL_MS = 5_000
"""How long a pop may wait at a broker. RocketMQ's brokers can miss a message that comes just when a pop
begins to wait; its own consumers, which wait for 15 s, get it then."""
FULL_PAUSE_S = 0.5
REFUSED_PAUSE_S = 1.0
UNREADABLE_PAUSE_S = 5.0


class _Place:
    """One broker of a topic."""

    def __init__(self) -> None:
        self.held: dict[InFlight, None] = {}
        """What was popped there and is not settled."""
        self.room = asyncio.Event()
        """Set when something is settled: more may be popped."""
        self.last_pop_ms = 0


class PopConsumer:
    """A member of a consumer group that pops.

        consumer = PopConsumer("billing", namesrv="127.0.0.1:9876")
        consumer.subscribe("orders", "paid || sent", handle)
        async with consumer:
            await asyncio.Event().wait()

    Args:
        invisible_duration: how long a message is hidden from others at a time; while it waits here or its
            handler works, that is renewed. When this client crashes, its messages come again after this time.
        from_where: FIRST_OFFSET or LAST_OFFSET, where a group that never consumed begins.
        renew_limit: a handler that works longer than this shares its message with other clients.
        orderly: messages of a queue in order: a message that fails comes again before those behind it.
        concurrency: handler calls at the same time (with ``orderly`` one for each queue).
        max_reconsume_times: attempts before the dead letter topic; no end when ``orderly`` and None.
        pop_batch_size: messages asked for in one pop, 32 at most.
        max_cached_messages: of one broker and topic, popped and not yet settled.
        hooks: code around each call of a handler (`client/hooks.py`).

    The other arguments are those of `Consumer`.
    """

    def __init__(
        self,
        group: str,
        namesrv: str | Iterable[str],
        *,
        invisible_duration: timedelta | float = 60,
        renew_limit: timedelta | float = 3 * 3600,
        from_where: ConsumeFromWhere = ConsumeFromWhere.LAST_OFFSET,
        orderly: bool = False,
        concurrency: int = 20,
        max_reconsume_times: int | None = None,
        pop_batch_size: int = MAX_MESSAGES,
        max_cached_messages: int = 96,
        stop_timeout_s: float = 30.0,
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
        if not 1 <= pop_batch_size <= MAX_MESSAGES:
            raise ValueError(f"pop_batch_size is {pop_batch_size}, 1 to {MAX_MESSAGES} are possible")
        if from_where is ConsumeFromWhere.TIMESTAMP:
            raise ValueError("a pop begins at FIRST_OFFSET or LAST_OFFSET, not at a TIMESTAMP")
        self.group = group
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
        self._invisible_ms = invisible_ms(invisible_duration)
        self._orderly = orderly
        self._batch_size = pop_batch_size
        self._max_cached = max_cached_messages
        self._stop_timeout_s = stop_timeout_s
        if max_reconsume_times is None and not orderly:
            max_reconsume_times = DEFAULT_MAX_RECONSUME
        self._max_reconsume_times = max_reconsume_times
        self._subscriptions: dict[str, Subscription] = {}
        self._requests = PopRequests(session, group, PopOptions(from_where, orderly))
        self._heartbeats = Heartbeats(
            session, group, self._subscriptions, MessageModel.CLUSTERING, from_where
        )
        self._handlers = Handlers(self._subscriptions, group, session.client_id, tuple(hooks))
        self._tools = PopTools(
            session,
            group,
            self._subscriptions,
            consume_type=ConsumeType.PASSIVELY,
            orderly=orderly,
            concurrency=concurrency,
            popped=self._popped,
        )
        self._tools.handle_by(self._handlers, self._subscriptions)
        self._tools.bind(dispatcher)
        limit_s = renew_limit.total_seconds() if isinstance(renew_limit, timedelta) else renew_limit
        self._renewal = Renewal(self._requests, self._invisible_ms, limit_s)
        self._acks = Acks(self._requests)
        self._slots = asyncio.Semaphore(concurrency)
        self._calls = Calls()
        self._outages = Outages()
        self._places: dict[MessageQueue, _Place] = {}
        """By topic and broker, with `ANY_QUEUE`: where a loop pops, or what was popped is not settled."""
        self._looping: set[MessageQueue] = set()
        """The places of the loops that run."""
        self._loops: set[asyncio.Task[None]] = set()
        self._watch = RouteWatch(session, self._outages, lambda: self._looping)
        self._tasks: set[asyncio.Task[None]] = set()
        self._working: set[asyncio.Task[None]] = set()
        self._unhandled: list[InFlight] = []
        """What was popped and not handled when the consumer stopped."""
        self._replies: Replies | None = None
        self._started = self._stopping = False
        self._stop_once = Once(self._stop)

    def subscribe(
        self,
        topic: str,
        expression: Expression,
        handler: Handler | BatchHandler,
        *,
        batch_size: int | None = None,
    ) -> None:
        """Have a handler called with each message of a topic; as `Consumer.subscribe`."""
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
        """Join the group and begin. Raises as `Consumer.start`, and `MQError` for a static topic."""
        if not self._subscriptions:
            raise RuntimeError("subscribe to something before the consumer is started")
        session = self._session
        try:
            await session.name_servers.connect()
            await find_topics(session, self.group, self._subscriptions)
            for topic in self._subscriptions:
                if (route := session.known_route(topic)) is not None:
                    brokers_to_pop(topic, route)
        except BaseException:
            await session.close()
            raise
        self._started = True
        self._tools.start_ms = session.clock.now_ms()
        await self._heartbeats.send()
        spawn(self._heartbeats.run(), self._tasks)
        spawn(self._renewal.run(), self._tasks)
        spawn(self._watch.run(), self._tasks)
        for topic in self._subscriptions:
            route = session.known_route(topic)
            if route is not None:
                self._follow(topic, route)

    async def stop(self) -> None:
        """Stop popping, let running handlers end (``stop_timeout_s``), acknowledge, leave the group.

        Returns when that is done, also to those that call it meanwhile. A call that was cancelled can be
        repeated.
        """
        await self._stop_once()

    async def _stop(self) -> None:
        self._stopping = True
        await self._calls.end(self._stop_timeout_s)
        await cancel(self._working)
        await cancel(self._tasks)
        if self._started:
            await self._acks.end(self._stop_timeout_s)
            await self._give_back(self._unhandled)
        # A broker drops a pop that waits there when the connection is closed, and not before.
        await cancel(self._loops)
        if self._started:
            await self._heartbeats.unregister()
        await self._session.close()

    @property
    def client_id(self) -> str:
        """What brokers know this client by."""
        return self._session.client_id

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

    def _popped(self) -> dict[MessageQueue, PopProcessQueueInfo]:
        return {
            queue: PopProcessQueueInfo(wait_ack_count=len(place.held), last_pop_timestamp=place.last_pop_ms)
            for queue, place in self._places.items()
            if place.last_pop_ms
        }

    # -- popping: a loop for each broker of each topic

    def _route_changed(self, topic: str, route: TopicRoute) -> None:
        self._heartbeats.route_changed(route)
        self._watch.route_changed(topic, route)
        if self._started and not self._stopping and topic in self._subscriptions:
            try:
                self._follow(topic, route)
            except MQError as error:  # a topic that was created, or became static, after the start
                log.error("%s", error.remark)

    def _follow(self, topic: str, route: TopicRoute) -> None:
        for name in brokers_to_pop(topic, route):
            queue = MessageQueue(topic, name, ANY_QUEUE)
            if queue not in self._looping:
                self._looping.add(queue)
                spawn(self._pop_always(queue), self._loops)

    async def _pop_always(self, queue: MessageQueue) -> None:
        """Pop a broker until it leaves the route of the topic."""
        place = self._places.setdefault(queue, _Place())
        try:
            await self._pop_from(queue, place)
        finally:
            self._looping.discard(queue)
            if not place.held:
                del self._places[queue]

    def _is_there(self, queue: MessageQueue) -> bool:
        route = self._session.known_route(queue.topic)
        return route is not None and any(each.broker_name == queue.broker_name for each in route.read_queues)

    async def _pop_from(self, queue: MessageQueue, place: _Place) -> None:
        topic, broker_name = queue.topic, queue.broker_name
        held, room = place.held, place.room
        data = self._subscriptions[topic].data
        loop = asyncio.get_running_loop()
        while not self._stopping and self._is_there(queue):
            left = self._max_cached - len(held)
            if left <= 0:
                room.clear()
                await room.wait()
                continue
            began = loop.time()
            place.last_pop_ms = self._session.clock.now_ms()
            try:
                messages = await self._requests.pop(
                    broker_name,
                    data,
                    count=min(self._batch_size, left),
                    invisible_ms=self._invisible_ms,
                    poll_ms=POLL_MS,
                )
            except NetError as error:
                await self._pause(queue, f"pops at {broker_name} fail", error, OUTAGE_POLL_S)
                continue
            except MQError as error:
                if error.code == ResponseCode.POLLING_FULL:
                    await asyncio.sleep(FULL_PAUSE_S)
                    continue
                pause_s = OUTAGE_POLL_S if error.stale_route else REFUSED_PAUSE_S
                await self._pause(queue, f"pops of {topic} at {broker_name} are refused", error, pause_s)
                continue
            except MessageFormatError as error:
                log.error("messages of %s from %s cannot be read: %s", topic, broker_name, error)
                await asyncio.sleep(UNREADABLE_PAUSE_S)
                continue
            self._outages.worked(broker_name, loop.time())
            # Long polling: the messages were popped when the answer was sent, not when we asked.
            popped_at = max(began, loop.time() - 1.0)
            flying = self._renewal.hold(messages, popped_at)
            if self._stopping:
                for one in flying:
                    self._renewal.release(one)
                await self._give_back(flying)
                return
            held.update(dict.fromkeys(flying))
            self._dispatch(topic, flying, held, room)

    async def _pause(self, queue: MessageQueue, what: str, error: NetError | MQError, pause_s: float) -> None:
        await pause(self._outages, self._session, queue.topic, queue.broker_name, what, error, pause_s)

    # -- handling

    def _dispatch(
        self, topic: str, flying: list[InFlight], held: dict[InFlight, None], room: asyncio.Event
    ) -> None:
        size = self._subscriptions[topic].batch_size
        if self._orderly:
            queues: dict[tuple[str, int], list[InFlight]] = {}
            for one in flying:
                receipt = receipt_of(one.message)
                queues.setdefault((receipt.retry, receipt.queue_id), []).append(one)
            for members in queues.values():
                parts = [members[at : at + size] for at in range(0, len(members), size)]
                spawn(self._work(topic, parts, held, room), self._working)
            return
        for at in range(0, len(flying), size):
            spawn(self._work(topic, [flying[at : at + size]], held, room), self._working)

    async def _work(
        self, topic: str, parts: list[list[InFlight]], held: dict[InFlight, None], room: asyncio.Event
    ) -> None:
        """Handle the parts one after the other; with the first that fails the rest comes again, too."""
        try:
            while parts:
                async with self._slots:
                    if self._stopping:
                        return
                    self._calls.enter()
                    try:
                        done = await self._handle(topic, parts[0], parts[1:])
                    finally:
                        self._calls.leave()
                self._settled(parts.pop(0), held, room)
                if not done:
                    return
        finally:
            for part in parts:
                if self._stopping:
                    self._unhandled += part
                self._settled(part, held, room)

    def _settled(self, part: Iterable[InFlight], held: dict[InFlight, None], room: asyncio.Event) -> None:
        for one in part:
            self._renewal.release(one)
            held.pop(one, None)
        room.set()

    async def _handle(self, topic: str, part: list[InFlight], behind: list[list[InFlight]]) -> bool:
        messages = [one.message for one in part]
        try:
            await self._handlers(topic, messages)
        except Exception as error:
            level = error.delay_level if isinstance(error, RetryLater) else 0
            if not isinstance(error, RetryLater):
                log.exception("handler failed on %s %s", topic, messages[0].message_id)
            return await self._failed(part, behind, level)
        for one in part:
            async with one.lock:  # a renewal under way changes the receipt
                self._renewal.release(one)
            self._acks.add(one)
        return True

    async def _failed(self, part: list[InFlight], behind: list[list[InFlight]], level: int) -> bool:
        """Have messages delivered again, or take them out; True if those behind them may be handled."""
        again = False
        for one in part:
            message = one.message
            limit = self._max_reconsume_times
            async with one.lock:
                self._renewal.release(one)
                if level == TO_DEAD_LETTERS or (limit is not None and message.reconsume_times >= limit):
                    try:
                        await self._requests.to_dead_letters(message)
                        self._acks.add(one)
                        continue
                    except (NetError, MQError) as error:
                        log.warning("message %s is not a dead letter yet: %s", message.message_id, error)
                again = True
                await self._later(one, self._delay_s(level, message))
        if again and self._orderly:
            delay_s = self._delay_s(level, part[0].message)
            for waiting in [one for other in behind for one in other]:
                async with waiting.lock:
                    self._renewal.release(waiting)
                    await self._later(waiting, delay_s, suspend=True)
        return not again

    def _delay_s(self, level: int, message: MessageExt) -> int:
        return retry_delay_s(level, message.reconsume_times, ordered=self._orderly)

    async def _give_back(self, unhandled: list[InFlight]) -> None:
        await asyncio.gather(*(self._later(one, 0.001, suspend=True) for one in unhandled))

    async def _later(self, one: InFlight, delay_s: float, *, suspend: bool = False) -> None:
        try:
            await self._requests.change_invisible(one.message, round(delay_s * 1000), suspend=suspend)
        except (NetError, MQError) as error:
            log.warning(
                "message %s becomes visible at the time set before: %s", one.message.message_id, error
            )
