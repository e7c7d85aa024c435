"""A `batonmq.raft.disk.Disk` in memory that can lose power."""

from __future__ import annotations

import random
from collections.abc import Callable

from batonmq.raft.disk import TEMPORARY

SECTOR_BYTES = 512


class PowerCut(Exception):
    """The machine went down in the middle of a disk operation."""


class _File:
    def __init__(self) -> None:
        self.data = bytearray()
        """What was written, and the room (zeros) after it."""
        self.end = 0
        """Where what was written ends."""
        self.synced = 0
        """Up to here it is durable as it is."""
        self.durable_size = 0
        """So long the file is on the disk; beyond ``synced`` it holds zeros."""


class _Handle:
    """Writes at the end; ``allocate_bytes`` of room are made ahead, as `OsDisk` does."""

    def __init__(self, disk: MemoryDisk, file: _File, allocate_bytes: int) -> None:
        self._disk = disk
        self._file = file
        self._allocate_bytes = allocate_bytes
        file.end = file.synced = len(file.data)

    def write(self, data: bytes) -> None:
        self._disk.work()
        file = self._file
        if file.end + len(data) > len(file.data):
            file.data[file.end :] = data
            file.data += bytes(self._allocate_bytes)
        else:
            file.data[file.end : file.end + len(data)] = data
        file.end += len(data)

    def sync(self) -> None:
        self._disk.work()
        self._file.synced = self._file.end
        self._file.durable_size = len(self._file.data)

    def close(self) -> None:
        if self._allocate_bytes:
            del self._file.data[self._file.end :]  # not synced: after a crash the room may be there again


_Names = dict[str, _File]


class MemoryDisk:
    """Written bytes survive a power cut only if synced, names only if `sync_names` came after the change.

    What was not synced survives in part, chosen by `rng`: a prefix of the unsynced bytes, or any of their
    sectors with zeros for the others, perhaps followed by zeros where the file had grown already; a prefix of
    the unsynced changes of names.
    """

    def __init__(self, rng: random.Random, allocate_bytes: int = 0) -> None:
        self._rng = rng
        self._allocate_bytes = allocate_bytes
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
        return _Handle(self, self._names[name], 0 if name.endswith(TEMPORARY) else self._allocate_bytes)

    def truncate(self, name: str, size: int) -> None:
        self.work()
        file = self._names[name]
        del file.data[size:]
        file.end = file.synced = file.durable_size = size

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
            file.data = self._left_of(file)
            file.end = file.synced = file.durable_size = len(file.data)
        self._names, self._durable_names = dict(names), dict(names)
        self._changes.clear()
        self.operations_left = None

    def _left_of(self, file: _File) -> bytearray:
        rng, unsynced = self._rng, file.end - file.synced
        left = bytearray(file.data[: file.end])
        # The file's size: as it was synced, as it was to become, or anything in between.
        smallest = max(file.synced, file.durable_size)
        grown = max(smallest, len(file.data))
        size = rng.choice([smallest, grown, rng.randint(smallest, grown)])
        if unsynced and rng.random() < 0.5:
            # Sectors are written in any order, each whole or not at all.
            for sector in range(file.synced - file.synced % SECTOR_BYTES, file.end, SECTOR_BYTES):
                if rng.random() < 0.5:
                    begin, end = max(sector, file.synced), min(sector + SECTOR_BYTES, file.end)
                    left[begin:end] = bytes(end - begin)
        elif unsynced:
            kept = file.synced + rng.randint(0, unsynced)
            if size > kept:
                kept = max(file.synced, kept - kept % SECTOR_BYTES)
            left[kept:] = bytes(file.end - kept)
        del left[size:]
        return left.ljust(size, b"\0")
