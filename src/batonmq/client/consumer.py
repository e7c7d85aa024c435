"""Consuming as one of a group, push style: handlers are called with messages.

Every client of a group takes its share of the queues (`rebalance.py`), pulls them ahead (`process_queue.py`)
and commits what is done. When a master is lost, pulling goes on from the new one at the same offset. Delivery
is at least once: a message whose handler failed comes again later, and after a crash those not committed do.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import random
import ssl
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from batonmq.client.filter import matches, parse_tags
from batonmq.client.offsets import GroupOffsets, LocalOffsets, OffsetStore
from batonmq.client.process_queue import ProcessQueue
from batonmq.client.rebalance import allocate_averagely
from batonmq.client.routes import TopicRoute
from batonmq.client.session import OUTAGE_POLL_S, Session
from batonmq.common.clock import Clock
from batonmq.net.client import RemotingClient
from batonmq.net.dispatch import Dispatcher, Reply, Request
from batonmq.net.errors import ConnectFailed, NetError
from batonmq.protocol import bodies
from batonmq.protocol.bodies import (
    ConsumeFromWhere,
    ConsumeType,
    MessageModel,
    MessageQueue,
    SubscriptionData,
)
from batonmq.protocol.codes import MASTER_ID, PROTOCOL_VERSION, PullSysFlag, ResponseCode
from batonmq.protocol.compression import CompressionError
from batonmq.protocol.errors import MQError, error_for
from batonmq.protocol.frame import Command
from batonmq.protocol.headers.broker import (
    ConsumerSendMsgBack,
    GetConsumerListByGroup,
    GetMaxOffset,
    GetMaxOffsetResponse,
    Heartbeat,
    LockBatchMq,
    PullMessage,
    PullMessageResponse,
    SearchOffset,
    SearchOffsetResponse,
    UnlockBatchMq,
    UnregisterClient,
)
from batonmq.protocol.headers.client import (
    ConsumeMessageDirectly,
    GetConsumerRunningInfo,
    GetConsumerStatusFromClient,
    NotifyConsumerIdsChanged,
    ResetConsumerClientOffset,
)
from batonmq.protocol.message import MessageExt, MessageFormatError, decode_records
from batonmq.protocol.names import check_group, check_topic, is_retry_topic, retry_topic

log = logging.getLogger(__name__)

SUSPEND_MS = 15_000
"""How long a broker may hold a pull that finds nothing (long polling)."""
PULL_TIMEOUT_MS = 30_000
HEARTBEAT_INTERVAL_S = 30.0
REBALANCE_INTERVAL_S = 20.0
FIRST_REBALANCE_S = 1.0
"""The first rebalances follow quickly: the retry topic appears only after our first heartbeat."""
MOVED_BACK_PATIENCE_S = 10.0
"""How long a broker must say that the queue ends before our offset until we believe it: a new master shows
the end only once its replicas have confirmed it."""
LOCK_INTERVAL_S = 20.0
LOCK_LIFE_S = 30.0
"""A queue lock that was not renewed for this long must not be relied on (brokers drop it after 60 s)."""
LOCAL_RETRY_S = 5.0
"""When a message could not be sent back to its broker, it is handled again here after this time."""
MAX_ORDERLY_RECONSUME = 2**31 - 1
DEFAULT_MAX_RECONSUME = 16

_FOUND = int(ResponseCode.SUCCESS)
_NOTHING = frozenset({int(ResponseCode.PULL_NOT_FOUND), int(ResponseCode.PULL_RETRY_IMMEDIATELY)})
_MOVED = int(ResponseCode.PULL_OFFSET_MOVED)

Handler = Callable[[MessageExt], Awaitable[None] | None]
BatchHandler = Callable[[list[MessageExt]], Awaitable[None] | None]


class RetryLater(Exception):
    """Raised by a handler: deliver this message again later.

    ``delay_level`` is one of the broker's `messageDelayLevel` (1 is 1 s, 3 is 10 s, …); 0 lets the broker
    choose by the number of attempts, -1 sends it to the dead letter topic. Any other exception means 0.
    """

    def __init__(self, delay_level: int = 0) -> None:
        super().__init__(f"delay level {delay_level}")
        self.delay_level = delay_level


@dataclass(slots=True)
class _Subscription:
    data: SubscriptionData
    handler: Callable[[list[MessageExt]], Awaitable[None] | None]
    batch_size: int


@dataclass(slots=True, eq=False)
class _Assigned:
    """A queue that is ours: its buffer, its puller, its lock."""

    queue: MessageQueue
    buffer: ProcessQueue = field(default_factory=lambda: ProcessQueue(-1))
    dropped: bool = False
    locked_until: float = 0.0
    last_pull_ms: int = 0
    last_consume_ms: int = 0
    replica_id: int = MASTER_ID
    moved_back_since: float | None = None
    room: asyncio.Event = field(default_factory=asyncio.Event)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    orderly: asyncio.Queue[list[MessageExt]] = field(default_factory=asyncio.Queue)


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
        offsets_dir: where BROADCASTING keeps its offsets.
        client_ip: this machine's address in the client id; found out when None.
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
        tls: ssl.SSLContext | None = None,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        remoting: RemotingClient | None = None,
    ) -> None:
        check_group(group)
        self.group = group
        self._dispatcher = Dispatcher()
        self._session = Session(
            namesrv,
            tls=tls,
            clock=clock,
            rng=rng,
            poll_interval_ms=poll_interval_ms,
            dispatcher=self._dispatcher,
            remoting=remoting,
            ip=client_ip,
        )
        self._session.on_route = self._route_changed
        self._dispatcher.on(NotifyConsumerIdsChanged, self._ids_changed)
        self._dispatcher.on(ResetConsumerClientOffset, self._reset_offsets)
        self._dispatcher.on(GetConsumerRunningInfo, self._running_info)
        self._dispatcher.on(GetConsumerStatusFromClient, self._status)
        self._dispatcher.on(ConsumeMessageDirectly, self._consume_directly)
        self._model = model
        self._from_where = from_where
        self._from_timestamp_ms = from_timestamp_ms
        self._orderly = orderly
        self._concurrency = concurrency
        self._max_reconsume = max_reconsume_times
        self._pull_batch_size = pull_batch_size
        self._max_cached_messages = max_cached_messages
        self._max_cached_bytes = max_cached_bytes
        self._max_span = max_span
        self._commit_interval_s = commit_interval_ms / 1000
        self._suspend_s = suspend_ms / 1000
        self._stop_timeout_s = stop_timeout_s
        self._offsets: OffsetStore = (
            GroupOffsets(self._session, group)
            if model is MessageModel.CLUSTERING
            else LocalOffsets(offsets_dir, group)
        )
        self._subscriptions: dict[str, _Subscription] = {}
        self._assigned: dict[MessageQueue, _Assigned] = {}
        self._ready: asyncio.Queue[tuple[_Assigned, list[MessageExt]]] = asyncio.Queue()
        self._known: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._workers: set[asyncio.Task[None]] = set()
        self._rebalance_now = asyncio.Event()
        self._beat_now = asyncio.Event()
        self._running = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._started = self._stopping = False
        self._start_ms = 0

    # -- life

    def subscribe(
        self, topic: str, expression: str, handler: Handler | BatchHandler, *, batch_size: int | None = None
    ) -> None:
        """Have a handler called with each message of a topic whose tag fits (``*``, ``a``, ``a || b``).

        A handler that returns has handled the message; one that raises gets it again later (`RetryLater`
        says when). It may be a coroutine function; a plain one must not block. With ``batch_size`` it is
        called with a list of up to so many messages, which succeed or fail together.

        Raises:
            ValueError: the topic is subscribed already, or the expression names no tag.
            MQError: the topic's name is not allowed.
        """
        if self._started:
            raise RuntimeError("subscribe before the consumer is started")
        check_topic(topic)
        if topic in self._subscriptions:
            raise ValueError(f"{topic} is subscribed already")
        data = parse_tags(topic, expression, self._session.clock.now_ms())
        call: Any = handler if batch_size is not None else _one_by_one(handler)
        self._subscriptions[topic] = _Subscription(data, call, batch_size if batch_size is not None else 1)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Join the group and begin.

        Raises `TopicNotExistError` when a topic does not exist, `NoNameServer` when no name server answers
        within a few seconds.
        """
        if not self._subscriptions:
            raise RuntimeError("subscribe to something before the consumer is started")
        self._started = True
        self._start_ms = self._session.clock.now_ms()
        try:
            await self._session.connect()
            for topic in self._subscriptions:
                await self._session.refresh(topic)
        except BaseException:
            await self._session.close()
            raise
        if self._model is MessageModel.CLUSTERING:
            retry = retry_topic(self.group)
            self._subscriptions[retry] = _Subscription(
                parse_tags(retry, "*", self._start_ms), self._handle_retried, 1
            )
        await self._greet(self._all_addresses())
        await self._rebalance()
        for loop in (self._rebalance_loop(), self._beat_loop(), self._commit_loop()):
            self._spawn(loop, self._tasks)
        if self._orderly:
            self._spawn(self._lock_loop(), self._tasks)
        else:
            for _ in range(self._concurrency):
                self._spawn(self._work(), self._workers)

    async def stop(self) -> None:
        """Stop pulling, let running handlers end (``stop_timeout_s``), commit, leave the group."""
        if self._stopping:
            return
        self._stopping = True
        await _cancel(self._tasks)
        assigned = list(self._assigned.values())
        for held in assigned:
            held.dropped = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._stop_timeout_s):
                await self._idle.wait()
        await _cancel(self._workers)
        for held in assigned:
            await _cancel(held.tasks)
        if self._started:
            for held in assigned:
                await self._give_up(held)
            await self._say_goodbye()
        await self._session.close()

    @property
    def client_id(self) -> str:
        """What brokers know this client by."""
        return self._session.client_id

    @property
    def assigned(self) -> list[MessageQueue]:
        """The queues that are this client's now."""
        return sorted(self._assigned)

    def _spawn(self, work: Coroutine[Any, Any, None], into: set[asyncio.Task[None]]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        into.add(task)
        task.add_done_callback(into.discard)
        task.add_done_callback(_report)

    # -- the group: heartbeats, rebalance, locks

    def _all_addresses(self) -> set[str]:
        routes = filter(None, map(self._session.known_route, self._subscriptions))
        return {address for route in routes for address in route.addresses()}

    def _route_changed(self, topic: str, route: TopicRoute) -> None:
        if not route.addresses() <= self._known:
            self._beat_now.set()  # a broker that does not know us refuses our pulls
        self._rebalance_now.set()

    async def _beat_loop(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HEARTBEAT_INTERVAL_S):
                    await self._beat_now.wait()
            self._beat_now.clear()
            await self._greet(self._all_addresses())

    async def _greet(self, addresses: Iterable[str]) -> None:
        data = bodies.HeartbeatData(
            self.client_id,
            consumer_data_set=[
                bodies.ConsumerData(
                    self.group,
                    ConsumeType.PASSIVELY,
                    self._model,
                    self._from_where,
                    [subscription.data for subscription in self._subscriptions.values()],
                )
            ],
        )
        body = bodies.encode(data)

        async def greet(address: str) -> None:
            try:
                await self._session.net.call(address, Heartbeat(), body)
                self._known.add(address)
            except (NetError, MQError) as error:
                self._known.discard(address)
                log.info("heartbeat to %s: %s", address, error)

        await asyncio.gather(*map(greet, addresses))

    def _ids_changed(self, request: Request, header: NotifyConsumerIdsChanged) -> None:
        if header.consumer_group == self.group:
            self._rebalance_now.set()

    async def _rebalance_loop(self) -> None:
        interval_s = FIRST_REBALANCE_S
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(interval_s):
                    await self._rebalance_now.wait()
            interval_s = min(2 * interval_s, REBALANCE_INTERVAL_S)
            self._rebalance_now.clear()
            await self._rebalance()

    async def _rebalance(self) -> None:
        for topic in self._subscriptions:
            try:
                route = self._session.known_route(topic) or await self._session.refresh(topic)
                share = await self._share(topic, route)
            except (NetError, MQError) as error:
                if not is_retry_topic(topic):  # which does not exist before the first message failed
                    log.warning("rebalance of %s is put off: %s", topic, error)
                continue
            if share is not None:
                await self._take(topic, share)

    async def _share(self, topic: str, route: TopicRoute) -> list[MessageQueue] | None:
        """Our queues of a topic; None when that cannot be told now."""
        if self._model is MessageModel.BROADCASTING:
            return list(route.read_queues)
        address = next(filter(None, map(route.replica, sorted(route.brokers))), None)
        if address is None:
            return None
        answer = await self._session.net.call(address, GetConsumerListByGroup(self.group))
        clients = bodies.decode(answer.body, bodies.ConsumerIdList).consumer_id_list
        if self.client_id not in clients:
            self._beat_now.set()
            return None
        return allocate_averagely(self.client_id, clients, route.read_queues)

    async def _take(self, topic: str, share: list[MessageQueue]) -> None:
        wanted = set(share)
        for queue in [queue for queue in self._assigned if queue.topic == topic and queue not in wanted]:
            held = self._assigned.pop(queue)
            held.dropped = True
            await _cancel(held.tasks)
            await self._give_up(held)
            log.info("gave up %s", queue)
        for queue in share:
            if queue not in self._assigned:
                held = self._assigned[queue] = _Assigned(queue)
                self._spawn(self._pull_loop(held), held.tasks)
                if self._orderly:
                    self._spawn(self._work_in_order(held), held.tasks)
                log.info("took %s", queue)

    async def _give_up(self, held: _Assigned) -> None:
        """Commit and unlock a queue that is not ours any more."""
        if held.buffer.next_offset >= 0:
            try:
                await self._offsets.commit(held.queue, held.buffer.commit_offset)
            except (NetError, MQError, OSError) as error:
                log.warning("offset of %s was not committed: %s", held.queue, error)
        if self._orderly and held.locked_until:
            body = bodies.encode(
                bodies.UnlockBatchRequestBody(self.group, self.client_id, False, [held.queue])
            )
            try:
                await self._session.call_master(
                    held.queue.broker_name, held.queue.topic, UnlockBatchMq(), body, timeout_ms=1_000
                )
            except (NetError, MQError) as error:
                log.warning("%s stays locked until that expires: %s", held.queue, error)

    async def _say_goodbye(self) -> None:
        goodbye = UnregisterClient(self.client_id, consumer_group=self.group)
        connections = filter(None, map(self._session.net.connected, self._known))
        answers = await asyncio.gather(
            *(connection.call(goodbye, timeout_ms=1_000) for connection in connections),
            return_exceptions=True,
        )
        for answer in answers:
            if isinstance(answer, BaseException):
                log.info("unregister: %s", answer)

    async def _commit_loop(self) -> None:
        while True:
            await asyncio.sleep(self._commit_interval_s)
            for held in list(self._assigned.values()):
                if held.buffer.next_offset >= 0:
                    try:
                        await self._offsets.commit(held.queue, held.buffer.commit_offset)
                    except (NetError, MQError, OSError) as error:
                        log.warning("offset of %s is committed later: %s", held.queue, error)

    async def _lock(self, held: _Assigned) -> bool:
        """Have the queue for ourselves, as its broker sees it."""
        loop = asyncio.get_running_loop()
        asked = loop.time()
        body = bodies.encode(bodies.LockBatchRequestBody(self.group, self.client_id, False, [held.queue]))
        try:
            answer = await self._session.call_master(
                held.queue.broker_name, held.queue.topic, LockBatchMq(), body, timeout_ms=1_000
            )
        except (NetError, MQError) as error:
            log.info("%s is not locked: %s", held.queue, error)
            return False
        locked = bodies.decode(answer.body, bodies.LockBatchResponseBody).lock_ok_mq_set
        if held.queue in locked:
            held.locked_until = asked + LOCK_LIFE_S
            return True
        return False

    async def _may_work(self, held: _Assigned) -> bool:
        """An ordered queue must be locked; False after a pause when another client has it."""
        if not self._orderly or held.locked_until >= asyncio.get_running_loop().time():
            return True
        if await self._lock(held):
            return True
        await asyncio.sleep(self._suspend_s)
        return False

    async def _lock_loop(self) -> None:
        while True:
            await asyncio.sleep(LOCK_INTERVAL_S)
            for held in list(self._assigned.values()):
                await self._lock(held)

    # -- pulling

    async def _pull_loop(self, held: _Assigned) -> None:
        """Keep one queue's buffer filled, across whatever happens to its broker."""
        while not held.dropped:
            try:
                if not await self._may_work(held):
                    continue
                if held.buffer.next_offset < 0:
                    held.buffer.next_offset = await self._first_offset(held.queue)
                if held.buffer.is_full(self._max_cached_messages, self._max_cached_bytes, self._max_span):
                    held.room.clear()
                    await held.room.wait()
                    continue
                await self._pull(held)
            except NetError as error:
                log.info("pull of %s: %s", held.queue, error)
                await self._look_around(held.queue)
            except MQError as error:
                log.warning("pull of %s: %s", held.queue, error)
                if error.code in (ResponseCode.SUBSCRIPTION_NOT_EXIST, ResponseCode.SUBSCRIPTION_NOT_LATEST):
                    self._beat_now.set()
                await self._look_around(held.queue, patience_s=OUTAGE_POLL_S if error.stale_route else 1.0)
            except (MessageFormatError, CompressionError) as error:
                log.error("%s at %d: %s", held.queue, held.buffer.next_offset, error)
                await asyncio.sleep(LOCAL_RETRY_S)

    async def _look_around(self, queue: MessageQueue, patience_s: float = OUTAGE_POLL_S) -> None:
        await asyncio.sleep(patience_s)
        with contextlib.suppress(NetError, MQError):  # the old route is tried again
            await self._session.refresh(queue.topic)

    async def _first_offset(self, queue: MessageQueue) -> int:
        committed = await self._offsets.read(queue)
        if committed is not None:
            return committed
        if self._from_where is ConsumeFromWhere.FIRST_OFFSET or is_retry_topic(queue.topic):
            return 0  # the broker corrects it to the first one stored
        if self._from_where is ConsumeFromWhere.TIMESTAMP:
            answer = await self._session.call_master(
                queue.broker_name,
                queue.topic,
                SearchOffset(queue.topic, queue.queue_id, self._from_timestamp_ms),
            )
            assert isinstance(answer.header, SearchOffsetResponse)
            return answer.header.offset
        answer = await self._session.call_master(
            queue.broker_name, queue.topic, GetMaxOffset(queue.topic, queue.queue_id)
        )
        assert isinstance(answer.header, GetMaxOffsetResponse)
        return answer.header.offset

    async def _pull(self, held: _Assigned) -> None:
        queue, buffer = held.queue, held.buffer
        subscription = self._subscriptions[queue.topic].data
        route = self._session.known_route(queue.topic)
        address = route.replica(queue.broker_name, held.replica_id) if route is not None else None
        if address is None:
            raise ConnectFailed(queue.broker_name, "has no live replica")
        flags = PullSysFlag.SUSPEND | PullSysFlag.SUBSCRIPTION
        commit_offset = 0
        if self._model is MessageModel.CLUSTERING and buffer.commit_offset > 0:
            flags |= PullSysFlag.COMMIT_OFFSET
            commit_offset = buffer.commit_offset
        header = PullMessage(
            consumer_group=self.group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=buffer.next_offset,
            max_msg_nums=self._pull_batch_size,
            sys_flag=flags,
            commit_offset=commit_offset,
            suspend_timeout_millis=SUSPEND_MS,
            sub_version=subscription.sub_version,
            subscription=subscription.sub_string,
            expression_type=subscription.expression_type,
        )
        held.last_pull_ms = self._session.clock.now_ms()
        answer = await self._session.net.invoke(
            address,
            Command(int(PullMessage.code), header.to_ext(), binary=True),
            timeout_ms=PULL_TIMEOUT_MS,
        )
        if answer.code != _FOUND and answer.code not in _NOTHING and answer.code != _MOVED:
            raise error_for(answer.code, answer.remark, answer.ext)
        if held.dropped:
            return
        found = PullMessageResponse.from_ext(answer.ext)
        if answer.code == _MOVED and not self._believe(held, found):
            await self._look_around(queue, patience_s=10 * OUTAGE_POLL_S)
            return
        held.replica_id = found.suggest_which_broker_id
        held.moved_back_since = None
        if answer.code == _MOVED:
            buffer.restart()
            log.warning(
                "%s: no offset %d, going on at %d", queue, buffer.next_offset, found.next_begin_offset
            )
        if answer.code == _FOUND:
            self._received(held, decode_records(answer.body), subscription)
        buffer.next_offset = found.next_begin_offset

    def _believe(self, held: _Assigned, found: PullMessageResponse) -> bool:
        """Go where the broker sends us: forwards (messages expired) at once, backwards only after a while."""
        if found.next_begin_offset >= held.buffer.next_offset:
            return True
        now = asyncio.get_running_loop().time()
        if held.moved_back_since is None:
            held.moved_back_since = now
        held.replica_id = MASTER_ID
        return now - held.moved_back_since > MOVED_BACK_PATIENCE_S

    def _received(self, held: _Assigned, messages: list[MessageExt], subscription: SubscriptionData) -> None:
        messages = [message for message in messages if matches(subscription, message.tags)]
        if not messages:
            return
        held.buffer.add(messages)
        for message in messages:
            message.properties["MIN_OFFSET"] = str(message.queue_offset)
            origin = message.properties.get("RETRY_TOPIC")
            if origin and message.topic == retry_topic(self.group):
                message.topic = origin
        size = self._subscriptions[held.queue.topic].batch_size
        for begin in range(0, len(messages), size):
            part = messages[begin : begin + size]
            if self._orderly:
                held.orderly.put_nowait(part)
            else:
                self._ready.put_nowait((held, part))

    # -- handling

    async def _handle_retried(self, messages: list[MessageExt]) -> None:
        """A message that failed before goes to the handler of the topic it came from."""
        for message in messages:
            subscription = self._subscriptions.get(message.topic)
            if subscription is None:
                raise LookupError(f"no handler for {message.topic}, which was subscribed once")
            await _call(subscription.handler, [message])

    async def _work(self) -> None:
        while True:
            held, messages = await self._ready.get()
            if held.dropped:
                continue
            self._enter()
            try:
                await self._handle(held, messages)
            finally:
                self._leave()

    def _enter(self) -> None:
        self._running += 1
        self._idle.clear()

    def _leave(self) -> None:
        self._running -= 1
        if not self._running:
            self._idle.set()

    async def _handle(self, held: _Assigned, messages: list[MessageExt]) -> None:
        held.last_consume_ms = self._session.clock.now_ms()
        try:
            await _call(self._subscriptions[held.queue.topic].handler, messages)
        except Exception as error:
            level = error.delay_level if isinstance(error, RetryLater) else 0
            if not isinstance(error, RetryLater):
                log.exception("handler failed on %s offset %d", held.queue, messages[0].queue_offset)
            messages = await self._failed(held, messages, level)
        held.buffer.done(messages)
        held.room.set()

    async def _failed(self, held: _Assigned, messages: list[MessageExt], level: int) -> list[MessageExt]:
        """Have failed messages delivered again; those that are taken care of elsewhere."""
        if self._model is MessageModel.BROADCASTING:
            log.warning("%d messages of %s are dropped: broadcasting has no retry", len(messages), held.queue)
            return messages
        sent_back: list[MessageExt] = []
        for message in messages:
            try:
                await self._send_back(held.queue, message, level)
                sent_back.append(message)
            except (NetError, MQError) as error:
                log.warning("offset %d of %s is retried here: %s", message.queue_offset, held.queue, error)
                message.reconsume_times += 1
                asyncio.get_running_loop().call_later(
                    LOCAL_RETRY_S, self._ready.put_nowait, (held, [message])
                )
        return sent_back

    async def _send_back(self, queue: MessageQueue, message: MessageExt, level: int) -> None:
        limit = DEFAULT_MAX_RECONSUME if self._max_reconsume is None else self._max_reconsume
        header = ConsumerSendMsgBack(
            offset=message.physical_offset,
            group=self.group,
            delay_level=level,
            origin_msg_id=message.message_id,
            origin_topic=message.topic,
            max_reconsume_times=limit,
        )
        await self._session.call_master(queue.broker_name, queue.topic, header, timeout_ms=3_000)

    async def _work_in_order(self, held: _Assigned) -> None:
        """One message of the queue after the other, each until it succeeds."""
        limit = MAX_ORDERLY_RECONSUME if self._max_reconsume is None else self._max_reconsume
        while True:
            messages = await held.orderly.get()
            while messages and not held.dropped:
                if not await self._may_work(held):
                    continue
                self._enter()
                try:
                    held.last_consume_ms = self._session.clock.now_ms()
                    await _call(self._subscriptions[held.queue.topic].handler, messages)
                    held.buffer.done(messages)
                    messages = []
                except Exception as error:
                    if not isinstance(error, RetryLater):
                        log.exception("handler failed on %s offset %d", held.queue, messages[0].queue_offset)
                    messages = await self._failed_in_order(held, messages, limit)
                finally:
                    self._leave()
                if messages:
                    await asyncio.sleep(self._suspend_s)
            held.room.set()

    async def _failed_in_order(
        self, held: _Assigned, messages: list[MessageExt], limit: int
    ) -> list[MessageExt]:
        """What is to be tried again in place; messages over the limit go to the dead letter topic."""
        again: list[MessageExt] = []
        for message in messages:
            message.reconsume_times += 1
            if message.reconsume_times > limit:
                try:
                    await self._send_back(held.queue, message, -1)
                    held.buffer.done([message])
                    continue
                except (NetError, MQError) as error:
                    log.warning("offset %d of %s: %s", message.queue_offset, held.queue, error)
            again.append(message)
        return again

    # -- what brokers ask

    async def _reset_offsets(self, request: Request, header: ResetConsumerClientOffset) -> Reply:
        """mqadmin resetOffsetByTime: go on from other offsets."""
        table = bodies.decode(request.command.body, bodies.ResetOffsetBody).offset_table
        for queue, offset in table.items():
            held = self._assigned.pop(queue, None)
            if held is None:
                continue
            held.dropped = True
            await _cancel(held.tasks)
            try:
                await self._offsets.commit(queue, offset)
            except (NetError, MQError, OSError) as error:
                log.warning("reset of %s to %d was not committed: %s", queue, offset, error)
            log.info("%s is reset to %d", queue, offset)
        self._rebalance_now.set()
        return Reply()

    def _running_info(self, request: Request, header: GetConsumerRunningInfo) -> Reply:
        info = bodies.ConsumerRunningInfo(
            properties={
                "PROP_CLIENT_VERSION": f"BatonMQ/{PROTOCOL_VERSION}",
                "PROP_CONSUMEORDERLY": str(self._orderly).lower(),
                "PROP_CONSUMER_START_TIMESTAMP": str(self._start_ms),
                "PROP_CONSUME_TYPE": ConsumeType.PASSIVELY.value,
                "PROP_NAMESERVER_ADDR": ";".join(self._session.namesrv),
                "PROP_THREADPOOL_CORE_SIZE": str(self._concurrency),
            },
            subscription_set=[subscription.data for subscription in self._subscriptions.values()],
            mq_table={
                queue: bodies.ProcessQueueInfo(
                    commit_offset=held.buffer.commit_offset,
                    cached_msg_count=held.buffer.count,
                    cached_msg_size_in_mib=held.buffer.size >> 20,
                    locked=held.locked_until > 0,
                    droped=held.dropped,
                    last_pull_timestamp=held.last_pull_ms,
                    last_consume_timestamp=held.last_consume_ms,
                )
                for queue, held in self._assigned.items()
            },
        )
        return Reply(body=bodies.encode(info))

    def _status(self, request: Request, header: GetConsumerStatusFromClient) -> Reply:
        """mqadmin consumerStatus: the next offset to commit of each queue of a topic."""
        table = {
            queue: held.buffer.commit_offset
            for queue, held in self._assigned.items()
            if queue.topic == header.topic
        }
        return Reply(body=bodies.encode(bodies.GetConsumerStatusBody(message_queue_table=table)))

    async def _consume_directly(self, request: Request, header: ConsumeMessageDirectly) -> Reply:
        """mqadmin queryMsgById -g: have the handler try this message now. Nothing is
        committed and nothing is sent back."""
        (message,) = decode_records(request.command.body)
        began_ms = self._session.clock.monotonic_ms()
        result = bodies.ConsumeMessageDirectlyResult(order=self._orderly)
        subscription = self._subscriptions.get(message.properties.get("RETRY_TOPIC") or message.topic)
        try:
            if subscription is None:
                raise LookupError(f"no handler for {message.topic}")
            await _call(subscription.handler, [message])
            result.consume_result = bodies.ConsumeResult.SUCCESS
        except RetryLater as later:
            result.consume_result, result.remark = bodies.ConsumeResult.LATER, str(later)
        except Exception as error:
            log.exception("handler failed on %s, which a tool sent", header.msg_id)
            result.consume_result = bodies.ConsumeResult.THROW_EXCEPTION
            result.remark = f"{type(error).__name__}: {error}"
        result.spent_time_mills = self._session.clock.monotonic_ms() - began_ms
        return Reply(body=bodies.encode(result))


def _one_by_one(handler: Any) -> Callable[[list[MessageExt]], Any]:
    return lambda messages: handler(messages[0])


async def _call(handler: Callable[[list[MessageExt]], Any], messages: list[MessageExt]) -> None:
    outcome = handler(messages)
    if inspect.isawaitable(outcome):
        await outcome


async def _cancel(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Cancel tasks (but not the one that runs this) and wait until they have ended."""
    others: Sequence[asyncio.Task[None]] = [task for task in tasks if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def _report(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.error("a task of the consumer failed", exc_info=task.exception())
