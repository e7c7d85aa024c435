"""Wheel and timer log together: what waits, in which order, and what a restart finds.

Blocking, without fsync but in `sync`. The log is written before the wheel; `open` rebuilds the wheel from
the log, so that neither a kill nor a power cut leaves the two apart. RocketMQ trusts its wheel, and needs
snapshots of it.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from batonmq.broker.timer.layout import MAGIC_DELETE, MAGIC_ROLL, NO_UNIT, Checkpoint, Slot, Unit
from batonmq.broker.timer.timer_log import TimerLog, sync
from batonmq.broker.timer.wheel import TimerWheel

log = logging.getLogger(__name__)

_EMPTY = Slot(NO_UNIT, NO_UNIT, 0)
MOST_ROLLED: Final = 100_000
"""Units of one slot that are looked at for those that were to be rolled."""
_FEW: Final = 64
"""Slots that are cleared one by one; for more, one pass over the whole wheel is quicker."""


class Entry(NamedTuple):
    """A message on its way into the wheel."""

    slot_ms: int
    magic: int
    written_ms: int
    physical_offset: int
    size: int
    topic_hash: int


def unit_of(entry: Entry, previous: int) -> Unit:
    """The unit of a message; `previous`: position of the one before it in its slot."""
    return Unit(previous, *entry[1:3], *entry[:1], *entry[3:])


class TimerStore:
    """The waiting messages of one broker."""

    def __init__(self, root: Path, precision_ms: int, log_file_size: int) -> None:
        """`root`: storePathRootDir. Raises `OSError`, and `StoreError` for files of another size."""
        self.wheel = TimerWheel(root / "timerwheel", precision_ms)
        try:
            self.log = TimerLog(root / "timerlog", log_file_size)
        except BaseException:
            self.wheel.close()
            raise
        self.waiting = 0
        """Number of messages in the wheel, less those that recall one."""
        self.used = 0
        """Number of slots with messages."""
        self.next_ms: int | None = None
        """Time of the first slot with messages; None for an empty wheel."""
        self._rolling: set[int] = set()
        """Times of slots in which messages wait to be rolled; some may be empty."""

    def close(self) -> None:
        self.log.close()
        self.wheel.close()

    # -- recovery

    def recover(self, checkpoint: Checkpoint, max_physical: int) -> dict[int, int]:
        """Cut damage and what lies behind the commit log's end `max_physical`; build the wheel from the log.

        Returns the number of waiting messages by hash of their topic. Raises `OSError`.
        """
        self.log.find_end(max_physical)
        if self.log.end == self.log.start:  # most brokers have no timed messages
            self.wheel.empty()
            return {}
        built = self.log.build(self.wheel.precision_ms, checkpoint.read_ms, checkpoint.log_end)
        self.wheel.replace(built.slots, built.others)
        self._rolling = {step * self.wheel.precision_ms for step in built.rolling}
        self.count_again()
        return built.by_topic_hash

    def count_again(self) -> None:
        """Set `waiting`, `used` and `next_ms` by what the wheel holds."""
        self.waiting, self.used, self.next_ms = self.wheel.totals()

    def forget_before(self, time_ms: int) -> list[Unit]:
        """Remove the messages in slots before a time: another broker has delivered them. Returns those that
        were to be rolled, by slot. Raises `OSError`."""
        rolled = [
            unit
            for slot_ms in sorted(slot for slot in self._rolling if slot < time_ms)
            for position in self.chain(slot_ms, NO_UNIT, MOST_ROLLED)[0]
            if (unit := self.log.read(position)) is not None and unit.roll
        ]
        self._forget_before(time_ms)
        self._rolling = {slot for slot in self._rolling if slot >= time_ms}
        return rolled

    def _forget_before(self, time_ms: int) -> None:
        for _ in range(_FEW):
            if self.next_ms is None or self.next_ms >= time_ms:
                return
            self.done(self.next_ms)
        self.wheel.forget_before(time_ms)
        self.count_again()

    # -- messages in

    def put(self, entries: Iterable[Entry]) -> None:
        """Add messages to their slots, in this order. Raises `OSError`; then none is in the wheel."""
        changed: dict[int, Slot] = {}
        for entry in entries:
            slot = changed.get(entry.slot_ms) or self.wheel.get(entry.slot_ms) or _EMPTY
            position = self.log.add(unit_of(entry, slot.last))
            first = position if slot.first == NO_UNIT else slot.first
            count = slot.number + (-1 if entry.magic & MAGIC_DELETE else 1)
            changed[entry.slot_ms] = Slot(first, position, count)
            if entry.magic & MAGIC_ROLL:
                self._rolling.add(entry.slot_ms)
        self.log.write()
        for slot_ms, slot in changed.items():
            before = self.wheel.get(slot_ms)
            self.wheel.put(slot_ms, slot)
            self.used += before is None
            self.waiting += slot.number - (0 if before is None else before.number)
            if self.next_ms is None or slot_ms < self.next_ms:
                self.next_ms = slot_ms

    def cut(self, max_physical: int) -> None:
        """The commit log was cut at `max_physical`: take back the messages behind. Raises `OSError`."""
        end = self.log.end
        for position, unit in self.log.backwards():
            if unit.physical_offset + unit.size <= max_physical:
                break
            end = position
            slot = self.wheel.get(unit.slot_ms)
            if slot is None or slot.last != position:
                continue
            if unit.previous == NO_UNIT or unit.previous < slot.first:
                self.wheel.clear(unit.slot_ms)
            else:
                count = slot.number + (1 if unit.magic & MAGIC_DELETE else -1)
                self.wheel.put(unit.slot_ms, Slot(slot.first, unit.previous, count))
        if end < self.log.end:
            log.warning(
                "the commit log was cut: %d bytes of the timer log are taken back", self.log.end - end
            )
            self.log.cut(end)
            self.count_again()

    # -- messages out

    def chain(self, slot_ms: int, until: int, most: int, begin: int | None = None) -> tuple[array[int], int]:
        """Up to `most` positions of the slot's units, newest first, from `begin` (None: the newest) down to,
        but without, the position `until`. Returns them and where to continue, or NO_UNIT."""
        found = array("q")
        slot = self.wheel.get(slot_ms)
        if slot is None:
            return found, NO_UNIT
        position = slot.last if begin is None else begin
        while position != NO_UNIT and position > until and position >= slot.first:
            if len(found) >= most:
                return found, position
            unit = self.log.read(position)
            if unit is None:
                break  # its file is gone, and with it the messages
            found.append(position)
            if unit.previous >= position:
                log.warning(
                    "timer log: the unit at %d names %d as the one before it; older ones of slot %d are lost",
                    *(position, unit.previous, slot_ms),
                )
                break  # damaged: following it might never end
            position = unit.previous
        return found, NO_UNIT

    def newest(self, slot_ms: int) -> int:
        """Position of the newest unit of a slot, or NO_UNIT."""
        slot = self.wheel.get(slot_ms)
        return NO_UNIT if slot is None else slot.last

    def done(self, slot_ms: int) -> None:
        """All messages of the slot are delivered. Raises `OSError`."""
        slot = self.wheel.get(slot_ms)
        self._rolling.discard(slot_ms)
        if slot is not None:
            self.wheel.clear(slot_ms)
            self.waiting -= slot.number
            self.used -= 1
        if not self.used:
            self.next_ms = None
        elif self.next_ms is None or self.next_ms >= slot_ms:  # messages for an earlier slot may have come
            self.next_ms = self.wheel.next_from(slot_ms)

    # -- disk

    def syncing(self, since: int) -> list[Path]:
        """Files to fsync (`sync`) so that everything is durable; the log was before the position `since`."""
        return [*self.log.paths_since(since), self.wheel.path]


__all__ = ["Entry", "TimerStore", "sync", "unit_of"]
