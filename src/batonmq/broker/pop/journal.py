"""Records in the revive topic, and what follows once they are safe.

Check points and acks are messages, so they are replicated and flushed like any other. The consumer offsets
are not: slaves copy them now and then. So an offset moves in its table only when the record that it follows
from is on every replica that may be elected, and on this disk; until then it is in memory, and in the log for
a new master. The revive queues' own offsets (group CID_RMQ_SYS_REVIVE_GROUP) move last: they say from where
on a new master must read.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from batonmq.broker.messages.appender import PutStatus
from batonmq.broker.pop.core import NOT_IN_LOG, Floors
from batonmq.broker.pop.counts import Counts
from batonmq.protocol.bodies.pop import AckRecord, CheckPoint, OrderRecord
from batonmq.protocol.message.ids import pack_address
from batonmq.protocol.message.properties import PROPERTY_TAGS, PROPERTY_TIMER_DELIVER_MS
from batonmq.protocol.message.record import StoredMessage
from batonmq.protocol.names import REVIVE_GROUP, revive_topic
from batonmq.store.results import PutResult
from batonmq.store.results import PutStatus as StorePutStatus

if TYPE_CHECKING:
    from batonmq.broker.context import Broker

log = logging.getLogger(__name__)

CHECK_POINT: Final = "ck"
ACK: Final = "ack"
BATCH_ACK: Final = "bAck"
ORDER: Final = "order"
"""Tags of the records; the last one is BatonMQ's own."""
_KINDS: Final = {CHECK_POINT: "CK", ACK: "ACK", BATCH_ACK: "ACK", ORDER: "ORDER"}
"""As metrics name them."""
SETTLE_INTERVAL_S: Final = 0.5
"""How often the tables follow the log."""

_encode = msgspec.json.Encoder().encode

Record: TypeAlias = CheckPoint | AckRecord | OrderRecord
Stored = Callable[[PutStatus, PutResult | None], None]


class _Waiter:
    """Waits for one record (`appender.Waiter`)."""

    __slots__ = ("_journal", "_labels", "_queue", "_stored", "_term", "wait")

    def __init__(self, journal: Journal, queue: int, labels: tuple[str, str, str], stored: Stored) -> None:
        self._journal = journal
        self._labels = labels
        self._queue = queue
        self._stored = stored
        self._term = journal.term
        self.wait = True

    def stored(self, status: PutStatus, result: PutResult | None) -> None:
        self._journal.stored.add(*self._labels, status.name)
        if self._term == self._journal.term:
            self._journal.noted(self._queue, result)
        else:
            # Of an earlier term of this broker: a new one reads the log.
            status, result = PutStatus.SERVICE_NOT_AVAILABLE, None
        self._stored(status, result)


class Journal:
    """The revive topic of one broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.topic = revive_topic(broker.settings.broker.broker_cluster_name)
        self.floors = Floors()
        self.term = 0
        """Number of starts and stops."""
        self.gaps: list[tuple[int, int, int]] = []
        """(queue, begin, end) of records that this broker has not written as master: of RocketMQ's timers."""
        self._in_flight: dict[int, int] = {}
        """Queue -> records on their way into the log, or unacknowledged."""
        self._effects: deque[tuple[int, Callable[[], None]]] = deque()
        self._safe: dict[int, int] = {}
        """Queue -> last offset that was taken into account and is safe."""
        self._noted: dict[int, int] = {}
        """Queue -> last offset that was taken into account at the last `settle`."""
        self._timer: asyncio.TimerHandle | None = None
        self._turn = 0
        self._kept = 0
        """Records that were kept in memory only."""
        self._store_host = b"\0" * 8
        self.stored = Counts()
        """Check points and acks, by group, topic, kind and status."""
        self.on_tick: Callable[[], None] = lambda: None
        """Called after each `settle`, to move on what holds the revive queues back."""

    @property
    def store_host(self) -> bytes:
        return self._store_host

    def begin(self) -> None:
        """This broker is master; nothing is known of the revive queues yet."""
        self._reset()
        self._store_host = pack_address(self._broker.address)

    def end(self) -> None:
        """This broker is no longer master, or stops."""
        self._reset()

    def _reset(self) -> None:
        self.term += 1
        self.floors = Floors()
        self.gaps.clear()
        self._in_flight.clear()
        self._effects.clear()
        self._safe, self._noted = {}, {}
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -- writing

    def next_queue(self) -> int:
        """The revive queue for the check points of one pop: each in turn."""
        topic = self._broker.tables.topics.get(self.topic)
        queues = max(1, topic.write_queue_nums) if topic is not None else 1
        self._turn = (self._turn + 1) % min(queues, self._broker.settings.broker.revive_queue_num)
        return self._turn

    def write(self, queue: int, tag: str, record: Record, stored: Stored) -> None:
        """Append a record at the end of this loop turn. `stored` is called once, as `Waiter.stored` is.

        An acting master keeps the record in memory only, at an offset from `NOT_IN_LOG` on.
        """
        if self._broker.role.is_acting:
            asyncio.get_running_loop().call_soon(self._keep, self.term, stored)
            return
        now_ms = self._broker.clock.now_ms()
        # The time of delivery is what a RocketMQ broker tells the time of this topic by.
        properties = f"{PROPERTY_TAGS}\x01{tag}\x02{PROPERTY_TIMER_DELIVER_MS}\x01{now_ms}\x02"
        message = StoredMessage(
            topic=self.topic,
            queue_id=queue,
            body=_encode(record),
            properties=properties.encode(),
            born_timestamp=now_ms,
            born_host=self._store_host,
            store_host=self._store_host,
        )
        self._in_flight[queue] = self._in_flight.get(queue, 0) + 1
        self._broker.appender.submit(
            message, _Waiter(self, queue, (record.consumer_group, record.topic, _KINDS[tag]), stored)
        )

    def _keep(self, term: int, stored: Stored) -> None:
        if term != self.term:
            stored(PutStatus.SERVICE_NOT_AVAILABLE, None)
            return
        self._kept += 1
        end = self._broker.store.max_offset
        stored(
            PutStatus.PUT_OK,
            PutResult(StorePutStatus.PUT_OK, physical_offset=end, queue_offset=NOT_IN_LOG + self._kept),
        )

    def noted(self, queue: int, result: PutResult | None) -> None:
        """A record of this broker is in the log, or was refused."""
        self._in_flight[queue] -= 1
        if result is not None:
            known = self.floors.known(queue) + 1
            if result.queue_offset > known:
                self.gaps.append((queue, known, result.queue_offset))
            self.floors.know(queue, result.queue_offset)

    def find_gaps(self) -> list[tuple[int, int, int]]:
        """The records that others have written since the last call."""
        for queue, unanswered in self._in_flight.items():
            self._find_gap(queue, unanswered)
        for queue in self.queues():
            if queue not in self._in_flight:
                self._find_gap(queue, 0)
        gaps, self.gaps = self.gaps, []
        return gaps

    def _find_gap(self, queue: int, unanswered: int) -> None:
        known = self.floors.known(queue) + 1
        end = self._broker.store.queue_bounds(self.topic, queue).max_offset
        if not unanswered and end > known:
            self.gaps.append((queue, known, end))
            self.floors.know(queue, end - 1)

    def queues(self) -> range:
        """All revive queues."""
        topic = self._broker.tables.topics.get(self.topic)
        return range(0 if topic is None else max(topic.read_queue_nums, topic.write_queue_nums))

    # -- what follows

    def after(self, end_offset: int, effect: Callable[[], None]) -> None:
        """Call `effect` once the log is safe up to `end_offset`; calls with higher offsets follow later."""
        self._effects.append((end_offset, effect))
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(SETTLE_INTERVAL_S, self._on_timer)

    def after_all(self, effect: Callable[[], None]) -> None:
        """Call `effect` once everything that is in the log now is safe."""
        self.after(self._broker.store.max_offset, effect)

    def _on_timer(self) -> None:
        self._timer = None
        self.settle()
        self.on_tick()
        if self._effects:
            self._timer = asyncio.get_running_loop().call_later(SETTLE_INTERVAL_S, self._on_timer)

    def settle(self) -> None:
        """Let the tables follow the log as far as it is safe."""
        store = self._broker.store
        safe = min(store.dispatched_offset, store.flushed_offset)
        effects = self._effects
        while effects and effects[0][0] <= safe:
            effects.popleft()[1]()
        offsets, known = self._broker.tables.offsets, {}
        for queue in self.floors.queues():
            known[queue] = self.floors.known(queue)
            settled = min(self.floors.settled(queue), self._safe.get(queue, -1))
            if settled > offsets.query(REVIVE_GROUP, self.topic, queue):
                offsets.commit(REVIVE_GROUP, self.topic, queue, settled)
        if known != self._noted:
            self._noted = known
            effects.append((store.max_offset, partial(self._safe.update, known)))
