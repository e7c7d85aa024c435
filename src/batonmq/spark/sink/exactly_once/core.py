"""Decisions of the exactly-once sink: when each half message is ended, and how checks are answered. No I/O.

Tasks prepare rows as half messages (`Unit`). The driver decides a batch by writing the list of its half
messages into the ledger, and ends them (`Ends`). With `END_TRANSACTIONS` a repeated request delivers nothing
again, so the sink repeats it after a lost answer. RocketMQ's brokers would deliver the message again, so
there the sink first looks it up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from itertools import islice
from typing import Final

import msgspec

MOST_UNITS: Final = 1_000
"""Most half messages that one request ends."""
MOST_BYTES: Final = 8 << 20
"""Most bytes of their bodies, because the broker appends them in one turn."""
NO_EPOCH: Final = -1
BATCH_EPOCH: Final = 0
"""The only epoch of a batch job."""
_SEPARATOR: Final = ":"


class Unit(msgspec.Struct, frozen=True, array_like=True):
    """A half message as its broker acknowledged it: one row, or a batch of rows for one queue."""

    topic: str
    broker: str
    queue_id: int
    half_offset: int
    """Its offset in the half queue."""
    commit_log_offset: int
    key: str
    """Its unique id."""
    rows: int
    size: int
    """Bytes of its body."""
    batch: bool = False
    """Only brokers with END_TRANSACTIONS can end it."""
    ordered: bool = False
    """Whether a key or the row itself chose the queue; then its messages keep their order."""


class Mark(msgspec.Struct, frozen=True):
    """Identifies the attempt that prepared a half message; stored as a property."""

    run: str
    """Random id of all the batches of one ledger."""
    epoch: int
    """Number of the batch; `NO_EPOCH` if the task does not know it."""
    attempt: str
    """Number of the task attempt."""

    def text(self) -> str:
        return _SEPARATOR.join((self.run, str(self.epoch), self.attempt))

    @classmethod
    def parse(cls, text: str | None) -> Mark | None:
        """None if the text is not a mark."""
        parts = (text or "").split(_SEPARATOR)
        if len(parts) != 3 or not parts[0] or len(parts[1]) > 18:
            return None
        number = parts[1].removeprefix("-")
        if not (number.isascii() and number.isdigit()):
            return None
        return cls(parts[0], int(parts[1]), parts[2])


def is_left_over(mark: Mark | None, run: str, epoch: int) -> bool:
    """Whether a half message that a broker checks may be rolled back while `epoch` of `run` is written.

    Spark begins a batch after the one before has been committed: all its accepted half messages are ended
    then. So an open one of an earlier batch belongs to an attempt that Spark did not accept, or is a copy of
    an ended one that a RocketMQ broker has stored again. Such an answer never commits: only the driver
    commits, so that no second commit can race with the first.
    """
    return mark is not None and mark.run == run and NO_EPOCH < mark.epoch < epoch


class State(Enum):
    """What the driver knows about the end of a half message."""

    OPEN = auto()
    """Certainly not committed."""
    UNKNOWN = auto()
    """A commit may have been carried out."""
    BUSY = auto()
    ACKED = auto()
    """The broker acknowledged the commit, but may not have waited for its replicas."""
    ENDED = auto()


class Kind(Enum):
    """A kind of request."""

    END_MANY = auto()
    """Commit these by one request."""
    END = auto()
    """Commit one."""
    LOOK_UP = auto()
    """Find out whether one was committed."""
    CONFIRM = auto()
    """Find out the master of the broker set, once its replicas have everything stored before."""


@dataclass(frozen=True, slots=True)
class Action:
    """One request to a broker set; report its outcome to `Ends`, once."""

    kind: Kind
    broker: str
    units: tuple[int, ...]
    """Numbers of the half messages; empty for CONFIRM."""


class Ends:
    """The ends of one decided batch.

    `ready` returns the actions that may start. The outcome of each action is reported by one of `done`,
    `failed`, `unsupported`, `found`, `absent`, `confirmed`. A failed action is returned again, so wait before
    the next call.
    """

    def __init__(self, units: Sequence[Unit], *, fresh: bool, most_in_flight: int = 256) -> None:
        """`fresh`: none of them can have been ended before."""
        self.units = units
        self._states = [State.OPEN if fresh else State.UNKNOWN] * len(units)
        numbers: dict[str, list[int]] = {}
        for number, unit in enumerate(units):
            numbers.setdefault(unit.broker, []).append(number)
        self._brokers = {
            broker: _BrokerEnds(broker, units, self._states, listed, most_in_flight)
            for broker, listed in numbers.items()
        }

    @property
    def left(self) -> int:
        """Half messages that are not ended."""
        return sum(broker.left for broker in self._brokers.values())

    @property
    def finished(self) -> bool:
        return all(not broker.left for broker in self._brokers.values())

    def state(self, number: int) -> State:
        return self._states[number]

    def ready(self) -> list[Action]:
        """Actions to start now."""
        return [action for broker in self._brokers.values() for action in broker.ready()]

    def done(self, action: Action, address: str) -> None:
        """The master at `address` has committed them."""
        self._brokers[action.broker].done(action, address)

    def failed(self, action: Action, *, maybe_done: bool) -> None:
        """The action failed. `maybe_done`: the request may have been carried out, or may still be."""
        self._brokers[action.broker].failed(action, maybe_done)

    def unsupported(self, action: Action) -> None:
        """The master does not know END_TRANSACTIONS."""
        self._brokers[action.broker].unsupported(action)

    def found(self, action: Action, address: str) -> None:
        """It was committed: the master at `address` has it."""
        self._brokers[action.broker].done(action, address)

    def absent(self, action: Action) -> None:
        """It was not committed, and no earlier request can still commit it."""
        self._brokers[action.broker].absent(action)

    def confirmed(self, action: Action, address: str) -> None:
        """The replicas have everything that the master at `address` acknowledged before. Ends that another
        master acknowledged may be lost."""
        self._brokers[action.broker].confirmed(action, address)


class _BrokerEnds:
    """The half messages of one broker set, in the order in which they are to be delivered."""

    def __init__(
        self, name: str, units: Sequence[Unit], states: list[State], numbers: list[int], most: int
    ) -> None:
        """`states`: of all half messages; shared with `Ends`."""
        self.left = len(numbers)
        self._name = name
        self._units, self._states = units, states
        self._numbers, self._most = numbers, most
        self._many = True
        """Whether the master has END_TRANSACTIONS, as far as known."""
        self._busy = 0
        self._first = 0
        """Index before which all half messages are ended."""
        self._before: dict[int, State] = {}
        """States of half messages that the next request may end."""
        self._acked_by: dict[int, str] = {}
        """Acknowledged half message -> the master that acknowledged it."""
        self._lanes: list[deque[int]] = []
        """Half messages that are ended one after the other; for brokers without END_TRANSACTIONS."""
        self._lane_of: dict[int, deque[int]] = {}
        """First half message of a lane, while a request for it is pending -> the lane."""
        self._idle: deque[deque[int]] = deque()

    # -- what to do

    def ready(self) -> list[Action]:
        if not self.left:
            return []
        if self._many:
            return [] if self._busy else self._by_one_request(self._numbers)
        actions = self._one_by_one()
        if self._busy:
            return actions
        if self._lanes:  # batches: perhaps the broker set has a master with END_TRANSACTIONS now
            return self._by_one_request([number for lane in self._lanes for number in lane if lane])
        return [self._start(Kind.CONFIRM, ())]

    def _start(self, kind: Kind, numbers: tuple[int, ...]) -> Action:
        self._busy += 1
        for number in numbers:
            self._before[number] = self._states[number]
            self._states[number] = State.BUSY
        return Action(kind, self._name, numbers)

    def _by_one_request(self, numbers: Sequence[int]) -> list[Action]:
        """The next half messages. Unknown ones may be ended again: that delivers nothing again."""
        states = self._states
        if self._many:
            while self._first < len(numbers) and states[numbers[self._first]] is State.ENDED:
                self._first += 1
        chosen: list[int] = []
        size = 0
        for number in islice(numbers, self._first if self._many else 0, None):
            if states[number] not in (State.OPEN, State.UNKNOWN):
                continue
            size += self._units[number].size
            if chosen and (len(chosen) >= MOST_UNITS or size > MOST_BYTES):
                break
            chosen.append(number)
        return [self._start(Kind.END_MANY, tuple(chosen))] if chosen else []

    def _one_by_one(self) -> list[Action]:
        actions: list[Action] = []
        batches: list[deque[int]] = []
        while self._idle and self._busy < self._most:
            lane = self._idle.popleft()
            number = lane[0]
            if self._units[number].batch:
                batches.append(lane)
                continue
            self._lane_of[number] = lane
            unknown = self._states[number] is State.UNKNOWN
            actions.append(self._start(Kind.LOOK_UP if unknown else Kind.END, (number,)))
        self._idle.extend(batches)
        return actions

    def _make_lanes(self) -> None:
        """One lane for each queue where the order counts; all others share as many lanes as requests may be
        pending."""
        ordered: dict[tuple[str, int], deque[int]] = {}
        free: list[deque[int]] = [deque() for _ in range(self._most)]
        for at, number in enumerate(self._numbers):
            unit = self._units[number]
            if self._states[number] is State.ENDED:
                continue
            if unit.ordered:
                ordered.setdefault((unit.topic, unit.queue_id), deque()).append(number)
            else:
                free[at % len(free)].append(number)
        self._lanes = [lane for lane in (*ordered.values(), *free) if lane]
        self._idle = deque(self._lanes)
        self._lane_of = {}

    # -- outcomes

    def done(self, action: Action, address: str) -> None:
        self._finish(action)
        if action.kind is Kind.END_MANY:
            for number in action.units:
                self._end(number)
            if not self._many:
                self._many = True
                self._forget_acks()
            return
        for number in action.units:
            self._states[number] = State.ACKED
            self._acked_by[number] = address
            self._next_in_lane(number)

    def failed(self, action: Action, maybe_done: bool) -> None:
        before = self._finish(action)
        for number in action.units:
            self._states[number] = State.UNKNOWN if maybe_done else before[number]
            if action.kind is not Kind.END_MANY:
                self._idle.append(self._lane_of.pop(number))

    def unsupported(self, action: Action) -> None:
        self.failed(action, maybe_done=False)
        if self._many:
            self._many = False
            self._make_lanes()

    def absent(self, action: Action) -> None:
        self._finish(action)
        for number in action.units:
            self._states[number] = State.OPEN
            self._idle.append(self._lane_of.pop(number))

    def confirmed(self, action: Action, address: str) -> None:
        self._finish(action)
        acked, self._acked_by = self._acked_by, {}
        for number, by in acked.items():
            if by == address:
                self._end(number)
            else:
                self._states[number] = State.UNKNOWN
        self._make_lanes()

    def _next_in_lane(self, number: int) -> None:
        lane = self._lane_of.pop(number)
        lane.popleft()
        if lane:
            self._idle.append(lane)
        elif not any(self._lanes):
            self._lanes = []

    def _forget_acks(self) -> None:
        """A master with END_TRANSACTIONS knows what was committed, so the request may be repeated."""
        for number in self._acked_by:
            self._states[number] = State.UNKNOWN
        self._acked_by.clear()
        self._first = 0

    def _finish(self, action: Action) -> dict[int, State]:
        self._busy -= 1
        return {number: self._before.pop(number) for number in action.units}

    def _end(self, number: int) -> None:
        self._states[number] = State.ENDED
        self.left -= 1
