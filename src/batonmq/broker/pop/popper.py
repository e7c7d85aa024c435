"""Serves pops, with long polling.

The order of the checks, the codes and the texts of the answer are RocketMQ's (`PopMessageProcessor`). A pop
takes messages from the queues of a topic, or from a retry topic of its group (`taker.py`), and is answered
once the check points of what it took are as safe as the configuration demands.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from batonmq.broker.messages.alarm import Alarm
from batonmq.broker.messages.filters import filter_of, subscription_of
from batonmq.broker.pop.held_pops import ANY_QUEUE, HeldPop, HeldPops, Line
from batonmq.broker.pop.looks import TURN_US, Looks
from batonmq.broker.pop.taker import CORRECTED, MAX_POP_BYTES, Place, Pop, PopAnswer, PopCall
from batonmq.broker.role import rejected
from batonmq.protocol.bodies.clients import ConsumeType
from batonmq.protocol.codes import Perm, ResponseCode
from batonmq.protocol.errors import FAQ, MQError
from batonmq.protocol.headers.broker.pop import PopMessage, PopMessageResponse
from batonmq.protocol.names import pop_retry_topic
from batonmq.protocol.pop import MAX_MESSAGES, ORDER_REVIVE_QUEUE
from batonmq.protocol.tags import is_tag_type
from batonmq.store.results import GetStatus, QueueKey

if TYPE_CHECKING:
    from batonmq.broker.context import Broker
    from batonmq.broker.pop.orders import Orders
    from batonmq.broker.pop.positions import Positions, QueueOfGroup
    from batonmq.broker.pop.taker import Taker
    from batonmq.protocol.bodies.topics import TopicConfig
    from batonmq.protocol.headers.broker.pop import Notification, PeekMessage, PollingInfo
    from batonmq.store.policy import MessageFilter

log = logging.getLogger(__name__)

MAX_INVISIBLE_MS: Final = 1 << 40
"""Longer invisible times are refused: a due time must fit Java's long."""
MAX_ATTEMPT_ID: Final = 1_024
"""Characters. It is kept with the batch of an ordered group, in memory and in the log; clients send UUIDs."""
MAX_POLL_MS: Final = 60_000
"""Longest time that a pop waits, whatever it asks for; RocketMQ's proxies ask for up to 20 s."""
EARLY_MS: Final = 50
"""A pop that finds nothing is answered so long before its poll time is over, as in RocketMQ (`PopRequest`):
clients of a proxy wait no longer than that for the answer."""
FETCH_MS: Final = 10_000
"""Longest time that a pop waits for the disk."""


class _Notified:
    """A request that waits until a pop would find a message."""

    __slots__ = ("call", "header", "topic")

    def __init__(self, call: PopCall, header: Notification, topic: TopicConfig) -> None:
        self.call = call
        self.header = header
        self.topic = topic


class Popper:
    """The pops of one broker, held ones included."""

    def __init__(self, broker: Broker, taker: Taker, positions: Positions, orders: Orders) -> None:
        self._broker = broker
        self._taker = taker
        self._positions = positions
        self._orders = orders
        self._held: HeldPops[Pop | _Notified] = HeldPops()
        self._alarm = Alarm(broker.clock, self._held.next_deadline_ms, self._on_deadline)
        self._order_timers: dict[tuple[str, str], asyncio.TimerHandle] = {}
        self._fetches: set[asyncio.Task[None]] = set()
        self._looks = Looks(broker.clock, self.wake)
        self._ready = asyncio.Event()
        orders.on_free = self.wake
        taker.on_cold = self._fetch

    @property
    def held(self) -> int:
        """Number of held pops and notifications."""
        return len(self._held)

    @property
    def ready(self) -> bool:
        """Whether the revive queues are read, so that it is known what is invisible."""
        return self._ready.is_set()

    async def until_ready(self) -> None:
        await self._ready.wait()

    # -- requests

    def pop(self, header: PopMessage, call: PopCall) -> None:
        """Answer `call` now or later. Raises `MQError`."""
        pop = self._check(header, call)
        if self._taker.attempt(pop):
            return
        # While its messages come from disk it is held even if it does not want to wait.
        self._hold_or_refuse(pop, header.queue_id, max(header.poll_time, FETCH_MS if pop.fetching else 0))

    def _hold_or_refuse(self, pop: Pop, queue_id: int, poll_ms: int) -> None:
        full = self._is_full(pop.header.topic, pop.header.consumer_group, queue_id)
        if poll_ms > 0 and not full:
            self._hold(pop, pop.header.topic, pop.header.consumer_group, queue_id, poll_ms)
            self._wait_for_order(pop)
            if pop.unseen:
                self._looks.add(pop.header.topic, pop.header.consumer_group)
        else:
            self._answer_empty(pop, ResponseCode.POLLING_FULL if full and poll_ms > 0 else None)

    def notification(self, header: Notification, call: PopCall) -> None:
        """Answer as soon as a pop would find a message. Raises `MQError`."""
        topic = self._check_topic(header.topic, header.queue_id, call.peer)
        self._check_group(header.consumer_group)
        waiting = _Notified(call, header, topic)
        if self._would_find(waiting):
            call.notify(True, False)
            return
        full = self._is_full(header.topic, header.consumer_group, header.queue_id)
        if header.poll_time <= 0 or full:
            call.notify(False, full)
            return
        self._hold(waiting, header.topic, header.consumer_group, header.queue_id, header.poll_time)
        self._wait_for_order(waiting)

    def peek(self, header: PeekMessage, call: PopCall) -> PopAnswer:
        """What a pop would find now. Raises `MQError`."""
        topic = self._check_topic(header.topic, header.queue_id, call.peer)
        self._check_group(header.consumer_group)
        most, rest = max(1, min(header.max_msg_nums, MAX_MESSAGES)), 0
        buffers: list[memoryview | bytes] = []
        count = 0
        for name, queue_id in self._queues(topic, header.queue_id, header.consumer_group, number=0):
            offset = self._begin_of((name, header.consumer_group, queue_id))
            bounds = self._broker.store.queue_bounds(name, queue_id)
            rest += max(0, bounds.max_offset - offset)
            if count >= most:
                continue
            result = self._broker.store.get(name, queue_id, offset, most - count, MAX_POP_BYTES)
            if result.status in CORRECTED:
                result = self._broker.store.get(
                    name, queue_id, result.next_offset, most - count, MAX_POP_BYTES
                )
            buffers += result.buffers
            count += result.count
        answer = PopMessageResponse(
            pop_time=self._broker.clock.now_ms(), invisible_time=0, revive_qid=0, rest_num=rest
        )
        if not buffers:
            return PopAnswer(answer, (), ResponseCode.PULL_NOT_FOUND, GetStatus.NO_MESSAGE_IN_QUEUE.name)
        return PopAnswer(answer, buffers, ResponseCode.SUCCESS, GetStatus.FOUND.name)

    def polling(self, header: PollingInfo, peer: str) -> int:
        """How many requests wait for this queue. Raises `MQError`."""
        self._check_topic(header.topic, header.queue_id, peer)
        self._check_group(header.consumer_group)
        return self._held.size(header.topic, header.consumer_group, header.queue_id)

    # -- long polling

    def _is_full(self, topic: str, group: str, queue_id: int) -> bool:
        config = self._broker.settings.broker
        return (
            len(self._held) >= config.max_pop_polling_size
            or self._held.lines >= config.pop_polling_map_size
            or self._held.size(topic, group, queue_id) > config.pop_polling_size
        )

    def _hold(self, waiting: Pop | _Notified, topic: str, group: str, queue_id: int, poll_ms: int) -> None:
        deadline_ms = self._broker.clock.monotonic_ms() + max(0, min(poll_ms, MAX_POLL_MS) - EARLY_MS)
        retries = () if waiting.header.order else self._retry_topics(topic, group, 0)
        self._held.hold(topic, retries, group, max(queue_id, ANY_QUEUE), deadline_ms, waiting)
        self._alarm.arm()

    def on_visible(self, queues: Iterable[tuple[QueueKey, int]]) -> None:
        """These queues have grown; called at most once per loop turn."""
        if self._held and self.ready:
            for line in self._held.lines_for(queues):
                self._run(line)

    def wake(self, topic: str, group: str) -> None:
        """An ordered group may have its next batch."""
        if self.ready:
            for line in self._held.lines_of(topic, group):
                self._run(line)

    def open(self) -> None:
        """It is known what is invisible: serve requests."""
        self._ready.set()
        for line in {id(held.line): held.line for held in self._held.all()}.values():
            self._run(line)

    def release_all(self) -> None:
        """Answer every held request: the role changes, or the broker stops."""
        self._ready.clear()
        for held in self._held.all():
            self._expire(held)
        for timer in self._order_timers.values():
            timer.cancel()
        self._order_timers.clear()
        self._looks.clear()
        self._alarm.cancel()
        for task in self._fetches:
            task.cancel()

    def _run(self, line: Line[Pop | _Notified]) -> None:
        """Run the requests of a line, until one finds nothing or filters have taken long."""
        clock = self._broker.clock
        end_us = clock.monotonic_us() + TURN_US
        while (held := line.first()) is not None:
            waiting = held.pop
            if waiting.call.finished:
                self._held.release(held)
                continue
            try:
                if isinstance(waiting, _Notified):
                    if not self._would_find(waiting):
                        self._wait_for_order(waiting)
                        return
                    self._held.release(held)
                    waiting.call.notify(True, False)
                elif self._taker.attempt(waiting):
                    self._held.release(held)
                    if waiting.unseen and clock.monotonic_us() >= end_us:
                        self._looks.add(waiting.header.topic, waiting.header.consumer_group)
                        return
                else:
                    self._wait_for_order(waiting)
                    if waiting.unseen:
                        self._looks.add(waiting.header.topic, waiting.header.consumer_group)
                    return
            except Exception as error:
                log.exception("a held pop failed")
                self._held.release(held)
                waiting.call.fail(MQError(ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}"))

    def _on_deadline(self, now_ms: int) -> None:
        for held in self._held.expire(now_ms):
            self._expire(held)

    def _expire(self, held: HeldPop[Pop | _Notified]) -> None:
        self._held.release(held)
        waiting = held.pop
        if waiting.call.finished:
            return
        if isinstance(waiting, _Notified):
            waiting.call.notify(False, False)
        else:
            waiting.begin(self._broker.clock.now_ms(), 0)
            self._answer_empty(waiting, ResponseCode.POLLING_TIMEOUT)

    def _answer_empty(self, pop: Pop, code: int | None) -> None:
        header = pop.header
        answer = PopMessageResponse(
            pop_time=pop.pop_time,
            invisible_time=header.invisible_time,
            revive_qid=ORDER_REVIVE_QUEUE if header.order else max(pop.revive_queue, 0),
            rest_num=pop.rest,
            start_offset_info="",
            msg_offset_info="",
        )
        self._broker.stats.count_get(header.consumer_group, header.topic, 0, 0)
        pop.call.answer(
            PopAnswer(answer, (), code or ResponseCode.POLLING_TIMEOUT, GetStatus.NO_MESSAGE_IN_QUEUE.name)
        )

    def _wait_for_order(self, waiting: Pop | _Notified) -> None:
        """Try an ordered request again when the batch that blocks it is due."""
        header = waiting.header
        if not header.order:
            return
        now_ms = self._broker.clock.now_ms()
        queues = range(waiting.topic.read_queue_nums) if header.queue_id < 0 else (header.queue_id,)
        times = [
            self._orders.free_at((header.topic, header.consumer_group, queue), header.attempt_id, now_ms)
            for queue in queues
        ]
        due = min((each for each in times if each is not None), default=None)
        if due is None:
            return
        key = (header.topic, header.consumer_group)
        loop = asyncio.get_running_loop()
        when = loop.time() + max(1, min(due - now_ms, MAX_POLL_MS)) / 1000
        timer = self._order_timers.get(key)
        if timer is not None:
            if timer.when() <= when:
                return  # another queue is due before; then this request is tried, too
            timer.cancel()
        self._order_timers[key] = loop.call_at(when, self._order_due, key)

    def _order_due(self, key: tuple[str, str]) -> None:
        del self._order_timers[key]
        self.wake(*key)

    # -- checks

    def _check(self, header: PopMessage, call: PopCall) -> Pop:
        broker = self._broker
        if not broker.role.serves:
            raise rejected(broker.role)
        config = broker.settings.broker
        if config.broker_permission & Perm.READ == 0:
            raise MQError(ResponseCode.NO_PERMISSION, f"the broker[{self._ip}] pop message is forbidden")
        if not 0 < header.max_msg_nums <= MAX_MESSAGES:
            how = "greater than 32" if header.max_msg_nums > 0 else "not positive"
            raise MQError(
                ResponseCode.INVALID_PARAMETER, f"the broker[{self._ip}] pop message's num is {how}"
            )
        if not 0 < header.invisible_time <= MAX_INVISIBLE_MS:
            raise MQError(
                ResponseCode.INVALID_PARAMETER, f"the invisible time {header.invisible_time} ms is illegal"
            )
        if header.attempt_id is not None and len(header.attempt_id) > MAX_ATTEMPT_ID:
            raise MQError(
                ResponseCode.INVALID_PARAMETER, f"an attemptId of {len(header.attempt_id)} characters"
            )
        topic = self._check_topic(header.topic, header.queue_id, call.peer, checked=True)
        self._check_group(header.consumer_group)
        return Pop(
            call,
            header,
            topic,
            self._filter(header),
            self._retry_topics(header.topic, header.consumer_group, 0),
        )

    @property
    def _ip(self) -> str:
        return self._broker.address.rpartition(":")[0]

    def _check_topic(self, name: str, queue_id: int, peer: str, *, checked: bool = False) -> TopicConfig:
        broker = self._broker
        if not checked:
            if not broker.role.serves:
                raise rejected(broker.role)
            if broker.settings.broker.broker_permission & Perm.READ == 0:
                raise MQError(
                    ResponseCode.NO_PERMISSION, f"the broker[{self._ip}] peeking message is forbidden"
                )
        topic = broker.tables.topics.get(name)
        if topic is None:
            raise MQError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist, apply first please! {FAQ}")
        if topic.perm & Perm.READ == 0:
            raise MQError(ResponseCode.NO_PERMISSION, f"the topic[{name}] peeking message is forbidden")
        if queue_id >= topic.read_queue_nums:
            raise MQError(
                ResponseCode.INVALID_PARAMETER,
                f"queueId[{queue_id}] is illegal, topic:[{name}] "
                f"topicConfig.readQueueNums:[{topic.read_queue_nums}] consumer:[{peer}]",
            )
        return topic

    def _check_group(self, name: str) -> None:
        group = self._broker.tables.subscriptions.get_or_create(name)
        if group is None:
            raise MQError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group [{name}] does not exist, {FAQ}",
            )
        if not group.consume_enable:
            raise MQError(ResponseCode.NO_PERMISSION, f"subscription group no permission, {name}")

    def _filter(self, header: PopMessage) -> MessageFilter | None:
        broker, now_ms = self._broker, self._broker.clock.now_ms()
        by_tags = is_tag_type(header.exp_type)
        if not by_tags and not broker.settings.broker.enable_property_filter:
            raise MQError(
                ResponseCode.SYSTEM_ERROR,
                f"The broker does not support consumer to filter message by {header.exp_type}",
            )
        expression = header.exp or "*" if by_tags else header.exp
        try:
            subscription = subscription_of(header.topic, expression, header.exp_type, now_ms)
            message_filter = filter_of(subscription)
        except ValueError as error:
            raise MQError(
                ResponseCode.SUBSCRIPTION_PARSE_FAILED, f"parse the consumer's subscription failed: {error}"
            ) from None
        broker.tables.consumers.remember(header.consumer_group, subscription, ConsumeType.POP)
        return message_filter

    # -- reading

    def _retry_topics(self, topic: str, group: str, number: int) -> Sequence[str]:
        """The retry topics of a group; RocketMQ reads one of them in each pop, this broker both."""
        config = self._broker.settings.broker
        first = pop_retry_topic(group, topic, v2=config.enable_retry_topic_v2)
        if not (config.enable_retry_topic_v2 and config.retrieve_message_from_pop_retry_topic_v1):
            return (first,)
        older = pop_retry_topic(group, topic, v2=False)
        return (older, first) if number % 2 else (first, older)

    def _begin_of(self, key: QueueOfGroup) -> int:
        """Where a pop would begin, for requests that take nothing."""
        offset = self._positions.get(key)
        return offset if offset >= 0 else self._broker.store.queue_bounds(key[0], key[2]).min_offset

    def _queues(
        self, topic: TopicConfig, queue_id: int, group: str, number: int
    ) -> Iterable[tuple[str, int]]:
        """Queues of the topic and of its retry topics, without order."""
        if queue_id >= 0:
            yield topic.topic_name, queue_id
        else:
            for n in range(topic.read_queue_nums):
                yield topic.topic_name, (number + n) % topic.read_queue_nums
        for name in self._retry_topics(topic.topic_name, group, number):
            retry = self._broker.tables.topics.get(name)
            if retry is not None:
                for n in range(retry.read_queue_nums):
                    yield name, n

    def _would_find(self, waiting: _Notified) -> bool:
        header = waiting.header
        if not self.ready:
            return False
        for name, queue_id in self._queues(waiting.topic, header.queue_id, header.consumer_group, 0):
            key = (name, header.consumer_group, queue_id)
            if header.order:
                if name != header.topic:
                    continue
                if self._orders.free_at(key, header.attempt_id, self._broker.clock.now_ms()) is not None:
                    continue
            if self._broker.store.queue_bounds(name, queue_id).max_offset > self._begin_of(key):
                return True
        return False

    # -- what a pop waits for

    def _fetch(self, pop: Pop, place: Place, fetch: Callable[[], None]) -> None:
        """Bring messages into memory, and try again. Otherwise the write to the socket would wait for the
        disk and block all clients, and an unreadable disk would kill the process (SIGBUS)."""
        if pop.fetching:
            return
        pop.fetching = True
        task = asyncio.get_running_loop().create_task(self._fetched(pop, place, fetch))
        self._fetches.add(task)
        task.add_done_callback(self._fetches.discard)

    async def _fetched(self, pop: Pop, place: Place, fetch: Callable[[], None]) -> None:
        try:
            await asyncio.get_running_loop().run_in_executor(self._broker.readers, fetch)
        except OSError as error:
            log.error("messages of topic=%s queue=%d cannot be read: %s", place[0], place[1], error)
            self._drop(pop, MQError(ResponseCode.SYSTEM_ERROR, f"the messages cannot be read: {error}"))
            return
        finally:
            pop.fetching = False
        pop.warm = place
        if self.ready:
            self.wake(pop.header.topic, pop.header.consumer_group)
            if pop.header.poll_time <= 0 and not pop.fetching:
                self._drop(pop, None)

    def _drop(self, pop: Pop, error: MQError | None) -> None:
        """Answer a held pop that has to wait no longer."""
        header = pop.header
        for line in self._held.lines_of(header.topic, header.consumer_group):
            for held in list(line.waiting):
                if held.pop is pop and not held.released:
                    if error is None:
                        self._expire(held)
                    else:
                        self._held.release(held)
                        pop.call.fail(error)
                    return
