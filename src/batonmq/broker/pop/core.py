"""Outstanding check points of pop consumers, and how far the revive queues are settled. Pure.

A check point is a batch that was handed out and is not acknowledged as a whole. It is due when its invisible
time is over; what is not acknowledged then is revived, that is, put into a retry topic.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from itertools import count
from typing import Final, TypeAlias

from batonmq.protocol.bodies.pop import CheckPoint

Key: TypeAlias = tuple[str, str, int, int, int]
"""Topic, group, queue id, start offset, pop time (wall ms): what receipts name."""

REWRITE_INTERVALS_S: Final = (
    *(10, 20, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200),
)
"""Pauses before a check point whose messages could not be revived is tried again (`PopReviveService`)."""


class Outstanding:
    """One check point."""

    __slots__ = (
        "acked",
        "broker_name",
        "changed",
        "consumed",
        "due_ms",
        "foreign",
        "invisible_ms",
        "key",
        "live",
        "offsets",
        "pending",
        "physical_offset",
        "pinned",
        "put_again",
        "revive_offset",
        "revive_queue",
        "reviving",
        "suspend",
        "volatile",
    )

    def __init__(
        self,
        key: Key,
        offsets: tuple[int, ...],
        invisible_ms: int,
        revive_queue: int,
        *,
        suspend: bool = False,
        put_again: int = 0,
        broker_name: str = "",
    ) -> None:
        self.key = key
        self.offsets = offsets
        """Queue offsets of its messages, ascending."""
        self.invisible_ms = invisible_ms
        self.due_ms = key[4] + invisible_ms
        """Wall time from which the messages may be revived."""
        self.revive_queue = revive_queue
        self.revive_offset = -1
        """Offset of its record in the revive queue; -1 until it is stored."""
        self.physical_offset = -1
        """Commit log offset of its first record: every message of the batch lies before."""
        self.acked = 0
        """Bit ``n``: message ``n`` is acknowledged, and the ack is in the log."""
        self.pending = 0
        """Bits of acks that are on their way into the log."""
        self.changed = 0
        """Bits of messages that are settled here because they have a check point of their own now."""
        self.consumed = 0
        """Bits of messages that a consumer has acknowledged, where the ack is safe."""
        self.suspend = suspend
        self.put_again = put_again
        """How often reviving failed."""
        self.broker_name = broker_name
        self.foreign = ""
        """The broker set that has the messages, if it is another one: an acting master of RocketMQ writes its
        check points here."""
        self.reviving = False
        self.live = True
        """Whether it is among the outstanding ones."""
        self.volatile = False
        """It was handed out by an acting master: no log has a record of it, and the offset of the group stays
        before its messages."""
        self.pinned = False
        """Its record stays needed when it is settled: it alone brings back a message that an acting master
        hides for longer."""

    @property
    def all_bits(self) -> int:
        return (1 << len(self.offsets)) - 1

    @property
    def done(self) -> bool:
        """Every message is acknowledged."""
        return self.acked == self.all_bits

    def bits_of(self, offsets: Iterable[int]) -> int:
        """Bits of those offsets that belong to this check point."""
        bits, mine = 0, self.offsets
        for offset in offsets:
            # Most batches have no gaps.
            at = offset - mine[0]
            if 0 <= at < len(mine) and mine[at] == offset:
                bits |= 1 << at
            elif offset in mine:
                bits |= 1 << mine.index(offset)
        return bits

    def offsets_of(self, bits: int) -> list[int]:
        return [offset for n, offset in enumerate(self.offsets) if bits >> n & 1]

    @property
    def unacknowledged(self) -> list[int]:
        return self.offsets_of(self.all_bits & ~self.acked)


def record_of(entry: Outstanding, next_offset: int = -1, *, again: bool = False) -> CheckPoint:
    """What is stored for a check point; `again`: it was stored before, and moves on in the revive queue."""
    topic, group, queue_id, start, pop_time = entry.key
    return CheckPoint(
        start_offset=start,
        pop_time=pop_time,
        invisible_time=entry.invisible_ms,
        bit_map=entry.acked | entry.pending,
        num=len(entry.offsets),
        queue_id=queue_id,
        topic=topic,
        consumer_group=group,
        differences=[offset - start for offset in entry.offsets],
        broker_name=entry.broker_name,
        put_again=str(entry.put_again) if entry.put_again else None,
        suspend=entry.suspend,
        next_offset=next_offset,
        position=entry.physical_offset if again else -1,
    )


MOST_MESSAGES: Final = 127
"""Of a check point: RocketMQ counts them in a byte."""


def outstanding_of(record: CheckPoint, revive_queue: int) -> Outstanding | None:
    """Inverse of `record_of`, also for records of RocketMQ brokers; None if it is no check point of
    messages."""
    differences = record.differences
    if not differences:
        differences = list(range(min(max(0, record.num), MOST_MESSAGES)))
    times = record.put_again or "0"
    numbers = (record.start_offset, record.pop_time, record.invisible_time, record.queue_id, *differences)
    plausible = (
        record.topic
        and record.consumer_group
        and 0 < len(differences) <= MOST_MESSAGES
        and all(0 <= number < 1 << 60 for number in numbers)
    )
    if not plausible:
        return None
    start = record.start_offset
    entry = Outstanding(
        (record.topic, record.consumer_group, record.queue_id, start, record.pop_time),
        tuple(start + difference for difference in differences),
        record.invisible_time,
        revive_queue,
        suspend=record.suspend,
        put_again=int(times) if times.isascii() and times.isdigit() and len(times) < 4 else 127,
        broker_name=record.broker_name or "",
    )
    entry.acked = record.bit_map & entry.all_bits
    return entry


SET_BACK_MS: Final = 1_000
"""Step of the wall clock that is no correction of its speed."""
MOST_CONSUMED: Final = 4_096
"""Check points that are known for some time after the last ack."""


class CheckPoints:
    """All outstanding check points of a broker, by key and by due time, and the last acknowledged ones."""

    def __init__(self) -> None:
        self._by_key: dict[tuple[Key, str], Outstanding] = {}
        """By key and foreign broker set."""
        self._due: list[tuple[int, int, Outstanding]] = []
        self._ticket = count()
        self._consumed: dict[Key, Outstanding] = {}
        """The last ones that consumers have acknowledged as a whole, oldest first."""
        self._wall_began_ms: int | None = None
        """See `take_due`; at its last call."""

    def __len__(self) -> int:
        return len(self._by_key)

    def __iter__(self) -> Iterator[Outstanding]:
        return iter(self._by_key.values())

    def __contains__(self, key: Key) -> bool:
        return (key, "") in self._by_key

    def get(self, key: Key, foreign: str = "") -> Outstanding | None:
        return self._by_key.get((key, foreign))

    def add(self, entry: Outstanding) -> None:
        self._by_key[entry.key, entry.foreign] = entry
        heapq.heappush(self._due, (entry.due_ms, next(self._ticket), entry))

    def postpone(self, entry: Outstanding, due_ms: int) -> None:
        """Try again at `due_ms` what `take_due` has returned."""
        entry.reviving = False
        entry.due_ms = due_ms
        heapq.heappush(self._due, (due_ms, next(self._ticket), entry))

    def _limit_wait(self, now_ms: int) -> None:
        """The clock was set back: no messages stay hidden for more than one more invisible time."""
        due = self._due
        for number, (_, ticket, entry) in enumerate(due):
            entry.due_ms = min(entry.due_ms, now_ms + entry.invisible_ms)
            due[number] = entry.due_ms, ticket, entry
        heapq.heapify(due)

    def remove(self, entry: Outstanding) -> None:
        """It is settled: acknowledged as a whole, or revived."""
        entry.live = False
        if self._by_key.get((entry.key, entry.foreign)) is entry:
            del self._by_key[entry.key, entry.foreign]
        due = self._due
        if len(due) > 1024 and len(due) > 4 * len(self._by_key):
            # Acknowledged ones stay in the heap until they are due, which may be hours away.
            due[:] = [each for each in due if each[2].live]
            heapq.heapify(due)

    def remember(self, entry: Outstanding) -> None:
        """Consumers have acknowledged it as a whole: an ack may be repeated whose answer was lost."""
        consumed = self._consumed
        if len(consumed) >= MOST_CONSUMED:
            del consumed[next(iter(consumed))]
        consumed[entry.key] = entry

    def is_consumed(self, key: Key, offsets: Iterable[int]) -> bool:
        """Whether a check point that is not outstanding was settled by acks of these messages."""
        entry = self._consumed.get(key)
        if entry is None:
            return False
        bits = entry.bits_of(offsets)
        return bits != 0 and not bits & ~entry.consumed

    def forget_consumed(self) -> None:
        self._consumed.clear()

    def next_due_ms(self) -> int | None:
        """Wall time of the next one that may be due."""
        due = self._due
        while due and not due[0][2].live:
            heapq.heappop(due)
        return due[0][0] if due else None

    def take_due(self, now_ms: int, most: int, wall_began_ms: int = 0) -> list[Outstanding]:
        """Up to `most` check points that are due; each is returned once, until it is postponed.
        `wall_began_ms`: wall time less monotonic time, which shows whether the clock was set back."""
        if self._wall_began_ms is None or wall_began_ms < self._wall_began_ms - SET_BACK_MS:
            self._limit_wait(now_ms)
        self._wall_began_ms = wall_began_ms
        taken: list[Outstanding] = []
        due = self._due
        while due and len(taken) < most and (due[0][0] <= now_ms or not due[0][2].live):
            entry = heapq.heappop(due)[2]
            if entry.live:
                entry.reviving = True
                taken.append(entry)
        return taken


NOT_IN_LOG: Final = 1 << 60
"""Offsets in revive queues from here on are of no record: an acting master keeps check points in memory."""


class Floors:
    """How far each revive queue is settled: records up to there are no longer needed."""

    def __init__(self) -> None:
        self._held: dict[int, set[int]] = {}
        self._order: dict[int, list[int]] = {}
        self._known: dict[int, int] = {}

    def know(self, queue: int, offset: int) -> None:
        """A record at this offset was taken into account."""
        if NOT_IN_LOG > offset > self._known.get(queue, -1):
            self._known[queue] = offset

    def known(self, queue: int) -> int:
        """The last offset that was taken into account; -1 if none was."""
        return self._known.get(queue, -1)

    def hold(self, queue: int, offset: int) -> None:
        """This record is needed until `release`."""
        self._held.setdefault(queue, set()).add(offset)
        heapq.heappush(self._order.setdefault(queue, []), offset)
        self.know(queue, offset)

    def release(self, queue: int, offset: int) -> None:
        self._held.get(queue, set()).discard(offset)

    def count(self, queue: int) -> int:
        """Number of records that are needed."""
        return len(self._held.get(queue, ()))

    def first(self, queue: int) -> int | None:
        """The first record that is needed."""
        held, order = self._held.get(queue), self._order.get(queue)
        if not order or held is None:
            return None
        while order and order[0] not in held:
            heapq.heappop(order)
        return order[0] if order else None

    def settled(self, queue: int) -> int:
        """The last offset up to which no record is needed; -1 if none is settled."""
        first = self.first(queue)
        return self.known(queue) if first is None or first >= NOT_IN_LOG else first - 1

    def queues(self) -> list[int]:
        return list(self._known)
