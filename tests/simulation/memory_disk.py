"""A `batonmq.raft.disk.Disk` in memory that can lose power."""

from __future__ import annotations

import random
from collections.abc import Callable


class PowerCut(Exception):
    """The machine went down in the middle of a disk operation."""


class _File:
    def __init__(self) -> None:
        self.data = bytearray()
        self.synced = 0


class _Handle:
    def __init__(self, disk: MemoryDisk, file: _File) -> None:
        self._disk = disk
        self._file = file

    def write(self, data: bytes) -> None:
        self._disk.work()
        self._file.data += data

    def sync(self) -> None:
        self._disk.work()
        self._file.synced = len(self._file.data)

    def close(self) -> None:
        pass


_Names = dict[str, _File]


class MemoryDisk:
    """Written bytes survive a power cut only if synced, names only if `sync_names` came after the change.

    What was not synced survives in part, chosen by `rng`: a prefix of the unsynced bytes, perhaps followed by
    zeros where the file had grown already; a prefix of the unsynced changes of names.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._names: _Names = {}
        self._durable_names: _Names = {}
        self._changes: list[Callable[[_Names], object]] = []
        self.operations_left: int | None = None
        """Power goes away after so many more operations."""

    def work(self) -> None:
        if self.operations_left is not None:
            if self.operations_left == 0:
                raise PowerCut
            self.operations_left -= 1

    def _change(self, change: Callable[[_Names], object]) -> None:
        change(self._names)
        self._changes.append(change)

    def names(self) -> list[str]:
        return sorted(self._names)

    def path(self, name: str) -> str:
        return name

    def read(self, name: str) -> bytes:
        return bytes(self._names[name].data)

    def open_append(self, name: str) -> _Handle:
        self.work()
        if name not in self._names:
            file = _File()
            self._change(lambda names: names.__setitem__(name, file))
        return _Handle(self, self._names[name])

    def truncate(self, name: str, size: int) -> None:
        self.work()
        file = self._names[name]
        del file.data[size:]
        file.synced = size

    def rename(self, old: str, new: str) -> None:
        self.work()
        # A lost creation takes the rename with it, so `old` is there whenever the change is replayed.
        self._change(lambda names: names.__setitem__(new, names.pop(old)))

    def remove(self, name: str) -> None:
        self.work()
        self._change(lambda names: names.pop(name, None))

    def sync_names(self) -> None:
        self.work()
        self._durable_names = dict(self._names)
        self._changes.clear()

    def lose_power(self) -> None:
        """What is on the disk when it is next switched on."""
        rng = self._rng
        names = self._durable_names
        for change in self._changes[: rng.randint(0, len(self._changes))]:
            change(names)
        for file in names.values():
            unsynced = len(file.data) - file.synced
            if unsynced:
                kept = file.synced + rng.randint(0, unsynced)
                written = bytes(file.data[:kept])
                if rng.random() < 0.3:
                    # The file had grown to its new size, but from some sector on nothing was written.
                    sector = max(file.synced, kept - kept % 512)
                    written = written[:sector] + bytes(len(file.data) - sector)
                file.data = bytearray(written)
            file.synced = len(file.data)
        self._names, self._durable_names = dict(names), dict(names)
        self._changes.clear()
        self.operations_left = None
