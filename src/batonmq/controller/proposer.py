"""Events on their way into the log: all that arrive in one turn of the loop share one entry.

Order is kept: an event is applied after everything that was submitted before it, also across the heartbeats,
which may wait a little for others. While an entry is under way, the next one collects `MIN_BATCH` events, and
at most `PIPELINE` entries are under way: under load entries grow instead of queues. If several heartbeats of
one broker wait, sent over one connection, the newest is written.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeAlias, cast

from batonmq.controller import events
from batonmq.controller.effects import Outcome
from batonmq.protocol.codes import ResponseCode
from batonmq.raft.errors import NotLeader, Overloaded, RaftError, TransferInProgress

log = logging.getLogger(__name__)

PIPELINE: Final = 2
"""Entries under way at once: the second travels while the first is on the disks."""
MIN_BATCH: Final = 32
"""Events that make another entry while one is under way. On all three controllers together an entry costs
some 1,000 µs of processor time, each event in it some 20: larger batches would gain little."""
MAX_EVENTS: Final = 2_048
"""Events of one entry; applying them blocks the loop for some 10 µs each."""
MAX_BEATS: Final = 512
"""Heartbeats of one event: those of `MAX_HEARTBEAT_BYTES` (heartbeat_handler.py) fit into an entry."""
ANSWERED_WAIT_S: Final = 0.02
"""How long a heartbeat that was answered already waits for others: little beside the brokers' timeouts."""
PROMPT_S: Final = 0.3
"""The log keeps up while no entry is under way for longer: more than an entry takes on a busy disk, part
of the 0.9 s in which a broker expects an answer."""
MAX_ENTRY_BYTES: Final = 3 << 20
"""An entry that would be larger is made several; below `RaftConfig.max_proposal_bytes`."""

Callback = Callable[[Outcome], None]
_Broker: TypeAlias = tuple[str, int, int]
"""Broker name, broker id and session."""

NOT_LEADER = Outcome(
    code=int(ResponseCode.CONTROLLER_NOT_LEADER), remark="The controller is not in leader state"
)
BUSY = Outcome(code=int(ResponseCode.SYSTEM_BUSY), remark="too many requests wait for the controllers' log")


class Log(Protocol):
    """The part of `RaftNode` that this module needs."""

    async def propose(self, data: bytes) -> object: ...


class Proposer:
    """`submit` returns at once; the callback gets the event's outcome, or one that says why there is none."""

    def __init__(
        self,
        node: Log,
        now_ms: Callable[[], int],
        entry_version: Callable[[], int] = lambda: events.ENTRY_VERSION,
        *,
        decided: Callback,
        coalesce_ms: int,
        timeout_ms: int,
        capacity: int,
    ) -> None:
        """`decided` gets the outcomes of heartbeats that have effects, which no single one of them causes."""
        self.coalesce_ms = coalesce_ms
        self.timeout_ms = timeout_ms
        self.capacity = capacity
        self._node = node
        self._now_ms = now_ms
        self._entry_version = entry_version
        self._loop = asyncio.get_running_loop()
        self._events: list[events.AnyEvent] = []
        self._callbacks: list[Callback | None] = []
        self._decided = decided
        self._beats: dict[_Broker, events.Beat] = {}
        self._beat_callbacks: dict[_Broker, list[Callback]] = {}
        """Those who wait for their heartbeats; most were answered already."""
        self._awaited = 0
        """How many those are."""
        self._timer: asyncio.Handle | None = None
        self._timer_due: float | None = None
        """Loop time, if the timer only waits for more heartbeats."""
        self._beats_due = 0.0
        """Loop time by which the first of the heartbeats is to go."""
        self._tasks: dict[asyncio.Task[None], float] = {}
        """Entries under way, and the loop time at which each left."""
        self._failing = False
        """The last entry that ended was not decided."""
        self._closed = False

    @property
    def waiting(self) -> int:
        """Requests not yet handed to the log."""
        return len(self._events) + max(len(self._beats), self._awaited)

    @property
    def keeps_up(self) -> bool:
        """Whether what is submitted now will soon be decided, judged by what was submitted before."""
        if self._closed or self._failing or self.waiting >= self.capacity:
            return False
        return not self._tasks or self._loop.time() - min(self._tasks.values()) < PROMPT_S

    def submit(
        self, event: events.AnyEvent, callback: Callback | None = None, *, urgent: bool = False
    ) -> None:
        """`urgent` events are taken also when too many wait: those of the controller itself."""
        if self._refuse(callback, urgent):
            return
        self._move_beats()
        self._events.append(event)
        self._callbacks.append(callback)
        self._arm()

    def submit_beat(self, beat: events.Beat, callback: Callback | None = None) -> None:
        """As `submit` for one broker's heartbeat, which may wait for others: `coalesce_ms`, or longer if
        nobody waits for it."""
        if self._refuse(callback):
            return
        key = (beat.broker_name, beat.broker_id, beat.session)
        if callback is None:
            due = self._loop.time() + ANSWERED_WAIT_S
        else:
            due = self._loop.time() + self.coalesce_ms / 1000
            self._beat_callbacks.setdefault(key, []).append(callback)
            self._awaited += 1
        if not self._beats or due < self._beats_due:
            self._beats_due = due
        self._beats[key] = beat
        self._arm()

    async def close(self) -> None:
        """Waits for entries under way; the log itself must have been stopped. What waits is refused."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._move_beats()
        _answer(self._callbacks, [NOT_LEADER] * len(self._callbacks))
        self._events, self._callbacks = [], []
        if self._tasks:
            await asyncio.gather(*self._tasks)

    def _refuse(self, callback: Callback | None, urgent: bool = False) -> bool:
        if self._closed or (self.waiting >= self.capacity and not urgent):
            if callback is not None:
                callback(NOT_LEADER if self._closed else BUSY)
            return True
        return False

    def _move_beats(self) -> None:
        if not self._beats:
            return
        waiting, self._beats = list(self._beats.items()), {}
        callbacks, self._beat_callbacks, self._awaited = self._beat_callbacks, {}, 0
        for first in range(0, len(waiting), MAX_BEATS):
            part = waiting[first : first + MAX_BEATS]
            self._events.append(events.Heartbeats(tuple(beat for _, beat in part)))
            self._callbacks.append(self._to_all([each for key, _ in part for each in callbacks.get(key, ())]))

    def _to_all(self, callbacks: list[Callback]) -> Callback:
        def answer(outcome: Outcome) -> None:
            if outcome.effects:
                _answer([self._decided], [outcome])
                outcome = Outcome(code=outcome.code, remark=outcome.remark)
            _answer(callbacks, [outcome] * len(callbacks))

        return answer

    def _arm(self) -> None:
        """Schedule the next entry for when it is due."""
        under_way = len(self._tasks)
        full = len(self._events) + len(self._beat_callbacks) >= MIN_BATCH or len(self._beats) >= MAX_BEATS
        if under_way and (under_way >= PIPELINE or not full):
            return  # the next entry to be decided comes here again
        if not self._events and not full:
            if self._timer is None or (self._timer_due is not None and self._beats_due < self._timer_due):
                if self._timer is not None:
                    self._timer.cancel()
                self._timer_due = self._beats_due
                delay = self._beats_due - self._loop.time()
                self._timer = self._loop.call_later(max(0, delay), self._flush)
            return
        if self._timer is not None:
            if self._timer_due is None:
                return
            self._timer.cancel()
        self._timer_due = None
        self._timer = self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._timer = None
        self._move_beats()
        if not self._events:
            return
        batch, self._events = self._events[:MAX_EVENTS], self._events[MAX_EVENTS:]
        callbacks, self._callbacks = self._callbacks[:MAX_EVENTS], self._callbacks[MAX_EVENTS:]
        self._send(self._now_ms(), batch, callbacks)
        if self._events:
            self._arm()

    def _send(self, now_ms: int, batch: list[events.AnyEvent], callbacks: list[Callback | None]) -> None:
        """One entry for all of `batch`; several if it is too large or somebody's event cannot be written, so
        that nobody else's is lost with it."""
        data, problem = b"", ""
        try:
            data = events.encode(now_ms, tuple(batch), self._entry_version())
        except (TypeError, ValueError, OverflowError) as error:
            problem = f"the request cannot be written to the log: {error}"
        if not problem and len(data) <= MAX_ENTRY_BYTES:
            task = self._loop.create_task(self._propose(data, callbacks))
            self._tasks[task] = self._loop.time()
        elif len(batch) > 1:
            half = len(batch) // 2
            self._send(now_ms, batch[:half], callbacks[:half])
            self._send(now_ms, batch[half:], callbacks[half:])
        else:
            problem = problem or f"the request is too large for the log: {len(data)} bytes"
            invalid = Outcome(code=int(ResponseCode.CONTROLLER_INVALID_REQUEST), remark=problem)
            _answer(callbacks, [invalid])

    async def _propose(self, data: bytes, callbacks: list[Callback | None]) -> None:
        decided = False
        try:
            async with asyncio.timeout(self.timeout_ms / 1000):
                outcomes = cast("list[Outcome]", await self._node.propose(data))
            decided = True
        except NotLeader:
            outcomes = [NOT_LEADER] * len(callbacks)
        except TimeoutError:
            outcomes = [_failure(f"no quorum within {self.timeout_ms} ms; it may yet happen")] * len(
                callbacks
            )
        except (Overloaded, TransferInProgress) as error:
            outcomes = [Outcome(code=int(ResponseCode.SYSTEM_BUSY), remark=str(error))] * len(callbacks)
        except RaftError as error:
            outcomes = [_failure(str(error))] * len(callbacks)
        task = asyncio.current_task()
        assert task is not None
        self._tasks.pop(task, None)
        self._failing = not decided
        if not self._closed and (self._events or self._beats):
            self._arm()
        _answer(callbacks, outcomes)


def _failure(why: str) -> Outcome:
    return Outcome(code=int(ResponseCode.CONTROLLER_JRAFT_INTERNAL_ERROR), remark=why)


def _answer(callbacks: Sequence[Callback | None], outcomes: Sequence[Outcome]) -> None:
    for callback, outcome in zip(callbacks, outcomes, strict=True):
        if callback is not None:
            try:
                callback(outcome)
            except Exception:
                # One request's bug must not keep the others from their answers.
                log.exception("answering a request failed")
