"""The policy that features give the store: codes of consume queue units, observers, filters of readers.

The store knows no feature. A delayed message's unit holds its delivery time, a timer wants to see records go
by, a subscription filters by SQL: each gives the store one of these. Light queues are no such feature: they
are consume queues, written in the same step as the others (`light.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from batonmq.store.scan import Record

UnitCode = Callable[[bytes, int], int]
"""(properties, store time in ms) -> what the 8 bytes hold that are the tags code in other topics' units. It
must give the same number on every replica and after every restart, and not raise, whatever the properties."""


class DispatchObserver(Protocol):
    """Sees what `MessageStore.dispatch` has just made visible."""

    def dispatched(self, records: Sequence[Record]) -> None:
        """Confirmed records in the order of the log, prepared and rolled back transactions among them; their
        consume queue units are written. Called while the store opens, too, and again after a crash or for
        a log that was cut, with records seen before: it must be idempotent. It must not raise."""


@dataclass(frozen=True, slots=True)
class StorePolicy:
    """Given to `MessageStore.open`; what is left out costs nothing."""

    unit_codes: Mapping[str, UnitCode] = field(default_factory=dict)
    """By topic; all other topics have the hash of the message's tags."""
    observers: Sequence[DispatchObserver] = ()
    """With one or more of them every record is read once more, about a microsecond each."""


class OneProperty(Protocol):
    """A filter whose answer depends on the value of one property alone."""

    rare: bool
    """Whether few of the last messages passed; kept here for the next answer."""

    @property
    def mark(self) -> bytes:
        """`property_start` of the property."""

    def answer(self, number: int) -> bool:
        """Whether a message passes whose value has 8 bytes or fewer, none of them 0. The value is given as a
        number, its first byte lowest; 0: the message does not have the property."""


class MessageFilter(Protocol):
    """Which messages `MessageStore.get` gives out. Both are values, not methods: a filter by tags is then
    one call of a set's own method for each message."""

    @property
    def by_code(self) -> Callable[[int], bool] | None:
        """Takes the code of the consume queue unit, which costs nothing to read. False: the message is
        passed over. None: codes say nothing about this filter."""

    @property
    def by_properties(self) -> Callable[[bytes], bool] | None:
        """Takes the encoded properties of a message that passed `by_code`; they are read from the log, which
        may wait for the disk. None: the code was enough."""

    @property
    def weight(self) -> int:
        """How much work `by_properties` is, 1 or more: one look examines as many times fewer bytes."""

    @property
    def one_property(self) -> OneProperty | None:
        """The same as `by_properties`, if that looks at one property only: it is then asked once for many
        messages with the same value, unless `weight` is more than 1."""
