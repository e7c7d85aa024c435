"""The file ``timerwheel``: for each step of time the chain of messages that are due then.

Only waiting messages are in it: a slot is cleared once its messages are delivered. Slots are read and written
with pread and pwrite: the sparse file of 38 MB needs no memory, and a full disk is an `OSError`.

Times that are a multiple of the wheel's reach apart have one place in the file. Messages wait for two such
times when the broker was away for long, or when the clock was set; then the slot that came later is kept in
memory, and a restart finds it in the timer log. RocketMQ overwrites the earlier slot and loses its messages.
Source: RocketMQ's `TimerWheel`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from batonmq.broker.timer import layout
from batonmq.broker.timer.layout import NO_UNIT, SLOT, SLOT_DTYPE, Slot
from batonmq.store import mapped
from batonmq.store.errors import StoreError

CHUNK: Final = 4_096
"""Slots read together where many are looked at."""
NO_TIME: Final = 0
"""In place of a time."""
_EMPTY: Final = bytes(SLOT.size)


class TimerWheel:
    """The slots by time, ms since the epoch in steps of the precision."""

    def __init__(self, path: Path, precision_ms: int) -> None:
        """Open or create the file. Raises `OSError`, and `StoreError` for a file of another size."""
        self.path = path
        self.precision_ms = precision_ms
        self.slots = layout.SLOTS
        self._others: dict[int, Slot] = {}
        """By time in steps: slots whose place in the file is taken by another time."""
        size = self.slots * SLOT.size
        path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        length = os.fstat(self._fd).st_size
        if length == 0:
            os.ftruncate(self._fd, size)
        elif length != size:
            os.close(self._fd)
            raise StoreError(f"{path} has {length} bytes, a timer wheel has {size}")

    def close(self) -> None:
        """Close the file; further calls do nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    # -- one slot

    def get(self, time_ms: int) -> Slot | None:
        """The slot of this time; None if no message waits in it."""
        step = time_ms // self.precision_ms
        time, slot = self._at(step)
        return slot if time == step else self._others.get(step)

    def put(self, time_ms: int, slot: Slot) -> None:
        """Replace the slot. Raises `OSError`."""
        step = time_ms // self.precision_ms
        if step in self._others or self._at(step)[0] not in (NO_TIME, step):
            self._others[step] = slot
            return
        data = SLOT.pack(step, slot.first, slot.last, slot.number, 0)
        mapped.write_all(self._fd, data, step % self.slots * SLOT.size)

    def clear(self, time_ms: int) -> None:
        """Empty the slot. Raises `OSError`."""
        step = time_ms // self.precision_ms
        if self._others.pop(step, None) is None and self._at(step)[0] == step:
            mapped.write_all(self._fd, _EMPTY, step % self.slots * SLOT.size)

    def _at(self, step: int) -> tuple[int, Slot]:
        """Which time has the place in the file, in steps, and its slot; `NO_TIME` if no message waits."""
        data = os.pread(self._fd, SLOT.size, step % self.slots * SLOT.size)
        time, first, last, count, _ = SLOT.unpack(data)
        return time if time > 0 and last != NO_UNIT else NO_TIME, Slot(first, last, count)

    # -- many slots

    def next_from(self, time_ms: int) -> int | None:
        """Time of the first slot at or after `time_ms` in which messages wait."""
        begin = step = time_ms // self.precision_ms
        end = begin + self.slots
        found = [other for other in self._others if other >= begin]
        while step < end:
            slots = self._read(step, min(end - step, CHUNK))
            exact = np.flatnonzero(self._waiting(slots, step))
            if exact.size:
                found.append(step + int(exact[0]))
                break
            # Times beyond the reach; none of them is before one within it.
            later = slots["time"][(slots["time"] >= end) & (slots["last"] != NO_UNIT)]
            if later.size:
                found.append(int(later.min()))
            step += len(slots)
        return min(found) * self.precision_ms if found else None

    def count(self, begin_ms: int, end_ms: int) -> int:
        """Number of messages in the slots of this time, at most the wheel's reach."""
        step = begin_ms // self.precision_ms
        end = min(end_ms // self.precision_ms, step + self.slots)
        total = sum(slot.number for other, slot in self._others.items() if step <= other < end)
        while step < end:
            slots = self._read(step, min(end - step, CHUNK))
            total += int(slots["count"][self._waiting(slots, step)].sum())
            step += len(slots)
        return total

    def _read(self, step: int, count: int) -> npt.NDArray[np.void]:
        """Up to `count` slots from `step` on, fewer at the end of the file."""
        index = step % self.slots
        count = min(count, self.slots - index)
        data = os.pread(self._fd, count * SLOT.size, index * SLOT.size)
        return np.frombuffer(data, SLOT_DTYPE)

    @staticmethod
    def _waiting(slots: npt.NDArray[np.void], step: int) -> npt.NDArray[np.bool_]:
        times = np.arange(step, step + len(slots), dtype=np.int64)
        waiting: npt.NDArray[np.bool_] = (slots["time"] == times) & (slots["last"] != NO_UNIT)
        return waiting

    # -- the whole file

    def forget_before(self, time_ms: int) -> None:
        """Clear all slots before a time. Raises `OSError`."""
        step = time_ms // self.precision_ms
        self._others = {other: slot for other, slot in self._others.items() if other >= step}
        for index in range(0, self.slots, CHUNK):
            count = min(CHUNK, self.slots - index)
            slots = np.frombuffer(os.pread(self._fd, count * SLOT.size, index * SLOT.size), SLOT_DTYPE)
            old = (slots["time"] != 0) & (slots["time"] < step)
            if old.any():
                kept = slots.copy()
                kept[old] = np.zeros(1, SLOT_DTYPE)
                mapped.write_all(self._fd, kept.tobytes(), index * SLOT.size)

    def empty(self) -> None:
        """Clear all slots. Raises `OSError`."""
        self._others.clear()
        os.ftruncate(self._fd, 0)
        os.ftruncate(self._fd, self.slots * SLOT.size)

    def replace(self, slots: npt.NDArray[np.void], others: dict[int, Slot]) -> None:
        """Rewrite all slots, empty parts as holes. `others`: by time in steps, those whose place is taken.
        Raises `OSError`."""
        self.empty()
        self._others.update(others)
        used = slots["time"] != 0
        for index in range(0, self.slots, CHUNK):
            if used[index : index + CHUNK].any():
                mapped.write_all(self._fd, slots[index : index + CHUNK].tobytes(), index * SLOT.size)

    def totals(self) -> tuple[int, int, int | None]:
        """Number of waiting messages and of slots with messages, and the time of the first such slot; None
        for an empty wheel."""
        total, used = sum(slot.number for slot in self._others.values()), len(self._others)
        first = min(self._others) * self.precision_ms if self._others else None
        for index in range(0, self.slots, CHUNK):
            count = min(CHUNK, self.slots - index)
            slots = np.frombuffer(os.pread(self._fd, count * SLOT.size, index * SLOT.size), SLOT_DTYPE)
            waiting = (slots["time"] > 0) & (slots["last"] != NO_UNIT)
            if waiting.any():
                total += int(slots["count"][waiting].sum())
                used += int(waiting.sum())
                least = int(slots["time"][waiting].min()) * self.precision_ms
                first = least if first is None else min(first, least)
        return total, used, first
