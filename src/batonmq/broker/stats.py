"""Counters behind `brokerStatus`, `clusterList`, `statsAll` and `topicStatus`.

Counting costs one dictionary lookup; rates are computed from samples that the monitoring part takes every
`SAMPLE_INTERVAL_MS`. Pure: the time is passed in. Source: RocketMQ's broker statistics (names and windows).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from batonmq.protocol.bodies.statistics import (
    BROKER_GET_NUMS,
    BROKER_GET_NUMS_OF_USERS,
    BROKER_PUT_NUMS,
    BROKER_PUT_NUMS_OF_USERS,
    GROUP_GET_NUMS,
    GROUP_GET_SIZE,
    SNDBCK_PUT_NUMS,
    TOPIC_PUT_NUMS,
    TOPIC_PUT_SIZE,
)
from batonmq.protocol.names import LIGHT_PREFIX, is_light, is_system_topic

if TYPE_CHECKING:
    from batonmq.protocol.message.record import StoredMessage
    from batonmq.store.results import PutResult

SAMPLE_INTERVAL_MS = 10_000
"""Interval at which `BrokerStats.sample` must be called."""


class PoppedNames(NamedTuple):
    """Names of the counters of popped messages; only metrics use them."""

    messages: str
    size: str


POPPED: Final = {
    False: PoppedNames("POPPED_NUMS", "POPPED_SIZE"),
    True: PoppedNames("POPPED_RETRY_NUMS", "POPPED_RETRY_SIZE"),
}
"""By whether they come from the retry topic."""

_MINUTE_MS = 60_000
_HOUR_MS = 60 * _MINUTE_MS
_DAY_MS = 24 * _HOUR_MS


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Totals and rates within a window."""

    total: int = 0
    """Sum of the added values."""
    per_second: float = 0.0
    per_event: float = 0.0
    """Mean of the added values."""


class _Window:
    """Samples of a counter, at least `step_ms` apart and at most `length_ms` old."""

    __slots__ = ("_length_ms", "_samples", "_step_ms")

    def __init__(self, length_ms: int, step_ms: int) -> None:
        self._length_ms = length_ms
        self._step_ms = step_ms
        self._samples: deque[tuple[int, int, int]] = deque()

    def add(self, now_ms: int, total: int, events: int) -> None:
        samples = self._samples
        if samples and now_ms < samples[-1][0]:
            samples.clear()  # the clock was set back; until it is there again no rate would change
        if samples and now_ms - samples[-1][0] < self._step_ms:
            return
        samples.append((now_ms, total, events))
        while now_ms - samples[0][0] > self._length_ms:
            samples.popleft()

    def snapshot(self) -> Snapshot:
        if len(self._samples) < 2:
            return Snapshot()
        (begin_ms, begin, begin_events), (end_ms, end, end_events) = self._samples[0], self._samples[-1]
        total, events = end - begin, end_events - begin_events
        return Snapshot(total, total * 1000 / (end_ms - begin_ms), total / events if events else 0.0)


class Counter:
    """One statistic of one key, for example the messages stored in a topic."""

    __slots__ = ("day", "events", "hour", "minute", "total")

    def __init__(self) -> None:
        self.total = 0
        self.events = 0
        self.minute = _Window(_MINUTE_MS, SAMPLE_INTERVAL_MS)
        self.hour = _Window(_HOUR_MS, 10 * _MINUTE_MS)
        self.day = _Window(_DAY_MS, _HOUR_MS)

    def add(self, value: int) -> None:
        self.total += value
        self.events += 1

    def sample(self, now_ms: int) -> None:
        for window in (self.minute, self.hour, self.day):
            window.add(now_ms, self.total, self.events)


class BrokerStats:
    """All counters of one broker, since it started."""

    def __init__(
        self, now_ms: int, *, merge_light: bool = False, own_topics: Collection[str] = frozenset()
    ) -> None:
        """`merge_light`: what is consumed from light queues is counted as from one of them, and for their
        groups as for one group: there may be very many. `own_topics`: the topics that are named after the
        broker and its cluster, for probes."""
        self._merge_light = merge_light
        self._own_topics = own_topics
        self.started_ms = now_ms
        self._counters: dict[tuple[str, str], Counter] = {}
        self.put_messages = Counter()
        """Messages stored."""
        self.put_bytes = Counter()
        """Bytes stored."""
        self.get_messages = Counter()
        """Messages delivered to consumers."""
        self.found_pulls = Counter()
        """Pulls that found messages."""
        self.missed_pulls = Counter()
        """Pulls that found none."""
        self._users_put, self._users_get = Counter(), Counter()
        self.of_broker = {
            BROKER_PUT_NUMS: self.put_messages,
            BROKER_GET_NUMS: self.get_messages,
            BROKER_PUT_NUMS_OF_USERS: self._users_put,
            BROKER_GET_NUMS_OF_USERS: self._users_get,
        }
        """Statistics of the whole broker; tools ask for them with the cluster's name as key."""
        self._day = now_ms // _DAY_MS
        self.put_by_yesterday = self.put_by_today = 0
        """`users_put` at the beginning of yesterday and of today (UTC)."""
        self.get_by_yesterday = self.get_by_today = 0
        """`users_get` at the beginning of yesterday and of today (UTC)."""
        self.sample(now_ms)

    @property
    def users_put(self) -> int:
        """Messages of users' topics that were stored: a delayed message is stored in a system topic, too."""
        return self._users_put.total

    @property
    def users_get(self) -> int:
        """Messages of users' topics that were delivered."""
        return self._users_get.total

    # -- counting

    def count_put(self, topic: str, messages: int, size: int) -> None:
        """`messages` with `size` bytes in total were stored in a topic."""
        self._counter(TOPIC_PUT_NUMS, topic).add(messages)
        self._counter(TOPIC_PUT_SIZE, topic).add(size)
        self.put_messages.add(messages)
        self.put_bytes.add(size)
        if self._is_users(topic):
            self._users_put.add(messages)

    def count_append(self, messages: Sequence[StoredMessage], results: Sequence[PutResult]) -> None:
        """Count one append. Hot path: one counter update per topic, not per message."""
        topics: dict[str, list[int]] = {}
        for message, result in zip(messages, results, strict=True):
            if result.physical_offset < 0:
                continue
            sums = topics.get(message.topic)
            if sums is None:
                sums = topics[message.topic] = [0, 0]
            sums[0] += len(result.physical_offsets) or 1
            sums[1] += result.size
        for topic, (count, size) in topics.items():
            self.count_put(topic, count, size)

    def count_get(self, group: str, topic: str, messages: int, size: int) -> None:
        """A pull delivered `messages` with `size` bytes in total to a group; 0: it found nothing."""
        if not messages:
            self.missed_pulls.add(1)
            return
        key = self._key(topic, group)
        self._counter(GROUP_GET_NUMS, key).add(messages)
        self._counter(GROUP_GET_SIZE, key).add(size)
        self.get_messages.add(messages)
        self.found_pulls.add(1)
        if self._is_users(topic):
            self._users_get.add(messages)

    def count_pop(self, group: str, topic: str, messages: int, size: int, *, retry: bool) -> None:
        """Of what `count_get` counts, `messages` were popped from the topic, or (`retry`) its retry topic."""
        name, key = POPPED[retry], self._key(topic, group)
        self._counter(name.messages, key).add(messages)
        self._counter(name.size, key).add(size)

    def count_send_back(self, group: str, topic: str) -> None:
        """A group failed to consume a message."""
        self._counter(SNDBCK_PUT_NUMS, self._key(topic, group)).add(1)

    def _is_users(self, topic: str) -> bool:
        return not is_system_topic(topic) and topic not in self._own_topics

    def _key(self, topic: str, group: str) -> str:
        if self._merge_light:
            topic = LIGHT_PREFIX if is_light(topic) else topic
            group = LIGHT_PREFIX if is_light(group) else group
        return f"{topic}@{group}"

    def _counter(self, name: str, key: str) -> Counter:
        counter = self._counters.get((name, key))
        if counter is None:
            counter = self._counters[name, key] = Counter()
        return counter

    # -- samples and deletion

    def sample(self, now_ms: int) -> None:
        """Take a sample of every counter; call it every `SAMPLE_INTERVAL_MS`."""
        whole = (self.put_bytes, self.found_pulls, self.missed_pulls, *self.of_broker.values())
        for counter in (*whole, *self._counters.values()):
            counter.sample(now_ms)
        day = now_ms // _DAY_MS
        if day != self._day:
            self._day = day
            self.put_by_yesterday, self.put_by_today = self.put_by_today, self.users_put
            self.get_by_yesterday, self.get_by_today = self.get_by_today, self.users_get

    def forget_topic(self, topic: str) -> None:
        self._forget(lambda key: key == topic or key.startswith(f"{topic}@"))

    def forget_group(self, group: str) -> None:
        self._forget(lambda key: key.endswith(f"@{group}"))

    def _forget(self, matches: Callable[[str], bool]) -> None:
        self._counters = {pair: c for pair, c in self._counters.items() if not matches(pair[1])}

    # -- reading

    def find(self, name: str, key: str) -> Counter | None:
        """The counter `name` of a topic or ``topic@group``; None if it does not exist."""
        return self._counters.get((name, key))

    def totals(self, name: str) -> list[tuple[str, int]]:
        """(key, total) of every counter `name`."""
        return [(key, counter.total) for (of, key), counter in self._counters.items() if of == name]

    def put_rate(self, topic: str) -> float:
        """Messages per second stored in a topic during the last minute."""
        counter = self.find(TOPIC_PUT_NUMS, topic)
        return counter.minute.snapshot().per_second if counter else 0.0

    def get_rate(self, group: str, topic: str) -> float:
        """Messages per second of a topic delivered to a group during the last minute."""
        counter = self.find(GROUP_GET_NUMS, self._key(topic, group))
        return counter.minute.snapshot().per_second if counter else 0.0
