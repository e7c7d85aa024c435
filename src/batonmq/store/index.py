"""The key index: from a topic and a key, or unique id, to commit log offsets, in files of RocketMQ's layout.

A file is a header of 40 bytes (begin and end store time in ms, begin and end physical offset, used slots,
entry count starting at 1), then hash slots of 4 bytes (number of the newest entry), then entries of 20 bytes
(key hash 4, physical offset 8, seconds since the begin time 4, number of the next older entry in the slot 4).
Entries are added in batches, behind the hot path. Source: RocketMQ's `IndexFile` and `IndexHeader`.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from batonmq.protocol.codes import MessageSysFlag
from batonmq.protocol.java_hash import java_hash
from batonmq.protocol.message.properties import (
    PROPERTY_KEYS,
    PROPERTY_UNIQUE_KEY,
    find_property,
    property_start,
    split_keys,
)
from batonmq.store.mapped import sync_path
from batonmq.store.scan import Record

_HEADER = struct.Struct(">4q2i")
_UNIQUE_KEY = PROPERTY_UNIQUE_KEY.encode()
_KEYS = PROPERTY_KEYS.encode()
_KEYS_START = property_start(PROPERTY_KEYS)
_ENTRY = struct.Struct(">iqii")
_SLOT_SIZE = 4
_ALLOCATE_ENTRIES = 65536
_ENTRY_TYPE = np.dtype([("hash", ">i4"), ("offset", ">i8"), ("seconds", ">i4"), ("older", ">i4")])
assert _HEADER.size == 40
assert _ENTRY.size == _ENTRY_TYPE.itemsize == 20

Key = tuple[str, int, int]
"""``topic#key``, physical offset, store time in ms."""
Ints = npt.NDArray[np.int64]


class Keys(NamedTuple):
    """Keys in log order, one row each."""

    hashes: Ints
    """As `key_hash`."""
    offsets: Ints
    """Physical offsets of the records."""
    times: Ints
    """Store times of the records, ms."""

    @classmethod
    def of(cls, keys: Sequence[Key]) -> Keys:
        """From keys as text."""
        return cls(
            key_hashes([key for key, _, _ in keys]),
            np.array([offset for _, offset, _ in keys], np.int64),
            np.array([time for _, _, time in keys], np.int64),
        )

    def rows(self, begin: int, end: int) -> Keys:
        return Keys(self.hashes[begin:end], self.offsets[begin:end], self.times[begin:end])


def key_hash(key: str) -> int:
    """Java's `Math.abs(key.hashCode())`, with 0 for the one number that has no positive twin."""
    value = abs(java_hash(key))
    return 0 if value == 1 << 31 else value


def key_hashes(keys: Sequence[str]) -> npt.NDArray[np.int64]:
    """`key_hash` of many: keys of equal length are hashed together."""
    result = np.empty(len(keys), np.int64)
    by_length: dict[int, list[int]] = {}
    encoded = [key.encode("utf-16-be", "surrogatepass") for key in keys]
    for number, data in enumerate(encoded):
        by_length.setdefault(len(data), []).append(number)
    for length, numbers in by_length.items():
        units = np.frombuffer(b"".join([encoded[n] for n in numbers]), ">u2").reshape(
            len(numbers), length // 2
        )
        columns = np.ascontiguousarray(units.T, np.uint32)
        value = np.zeros(len(numbers), np.uint32)
        for column in columns:
            value *= np.uint32(31)
            value += column
        result[numbers] = np.abs(value.view(np.int32).astype(np.int64))
    result[result == 1 << 31] = 0
    return result


def keys_of(record: Record) -> list[str]:
    """What a record is found by: its unique id and each of its keys."""
    if record.sys_flag & MessageSysFlag.TRANSACTION_MASK == MessageSysFlag.TRANSACTION_ROLLBACK:
        return []
    found = []
    properties = record.properties
    unique = find_property(properties, _UNIQUE_KEY)
    if unique:
        found.append(f"{record.topic}#{unique.decode('utf-8', 'replace')}")
    if _KEYS_START in properties and (keys := find_property(properties, _KEYS)):
        found += [f"{record.topic}#{key}" for key in split_keys(keys.decode("utf-8", "replace"))]
    return found


class IndexFile:
    """One file. Its map is written, so its blocks are allocated before they are touched."""

    __slots__ = (
        "_allocated",
        "_fd",
        "_first_entry",
        "_map",
        "_unsynced",
        "begin_offset",
        "begin_timestamp",
        "count",
        "end_offset",
        "end_timestamp",
        "max_entries",
        "path",
        "slots",
        "used_slots",
    )

    begin_timestamp: int
    end_timestamp: int
    begin_offset: int
    end_offset: int
    used_slots: int
    count: int

    def __init__(self, path: Path, slots: int, entries: int, *, writable: bool = True) -> None:
        """Open or create; raises `OSError`, also for a full disk."""
        self.path = path
        self.slots = slots
        self.max_entries = entries
        self._first_entry = _HEADER.size + slots * _SLOT_SIZE
        size = self._first_entry + entries * _ENTRY.size
        self._fd = os.open(path, (os.O_RDWR | os.O_CREAT) if writable else os.O_RDONLY, 0o644)
        try:
            if writable and os.fstat(self._fd).st_size != size:
                os.ftruncate(self._fd, size)
            if writable:
                os.posix_fallocate(self._fd, 0, self._first_entry)
            self._map = mmap.mmap(self._fd, size, access=mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ)
        except BaseException:
            os.close(self._fd)
            raise
        self._allocated = 0
        self._unsynced = False
        """Whether something may have been written since the last fsync."""
        (
            self.begin_timestamp,
            self.end_timestamp,
            self.begin_offset,
            self.end_offset,
            self.used_slots,
            self.count,
        ) = _HEADER.unpack_from(self._map, 0)
        self.count = min(max(1, self.count), entries)

    @property
    def room(self) -> int:
        """Entries that still fit."""
        return self.max_entries - self.count

    def add(self, keys: Keys) -> None:
        """Add at most `room` entries, in log order; raises `OSError` on a full disk, having added none."""
        self._unsynced = True
        hashes, offsets, times = keys
        count = len(hashes)
        end = self.count + count
        if end > self._allocated:
            upto = min(self.max_entries, end + _ALLOCATE_ENTRIES)
            os.posix_fallocate(
                self._fd, self._entry_at(self.count), self._entry_at(upto) - self._entry_at(self.count)
            )
            self._allocated = upto
        empty = self.count <= 1
        if empty:
            self.begin_offset, self.begin_timestamp = int(offsets[0]), int(times[0])
        numbers = np.arange(self.count, end, dtype=np.int64)
        slot_numbers = hashes % self.slots
        slots = np.frombuffer(self._map, ">i4", self.slots, _HEADER.size)
        # Within a slot each entry points to the one before it, the first to what the slot held so far.
        order = np.argsort(slot_numbers, kind="stable")
        ordered = slot_numbers[order]
        first = np.ones(len(order), bool)
        first[1:] = ordered[1:] != ordered[:-1]
        last = np.ones(len(order), bool)
        last[:-1] = first[1:]
        held = slots[ordered[first]].astype(np.int64)
        held[(held <= 0) | (held > self.count)] = 0
        older = np.empty(len(order), np.int64)
        older[1:] = numbers[order][:-1]
        older[first] = held
        entries = np.frombuffer(self._map, _ENTRY_TYPE, count, self._entry_at(self.count))
        entries["hash"] = hashes
        entries["offset"] = offsets
        entries["seconds"] = np.clip((times - self.begin_timestamp) // 1000, 0, 0x7FFFFFFF)
        entries["older"][order] = older
        slots[ordered[last]] = numbers[order][last]
        self.used_slots += int((held == 0).sum())
        self.count = end
        self.end_offset, self.end_timestamp = int(offsets[-1]), int(times[-1])
        self._write_header()

    def truncate(self, offset: int) -> None:
        """Take back, newest first, every entry of a record at or behind commit log `offset`."""
        self._unsynced = True
        while self.count > 1:
            value, physical_offset, _, older = self._entry(self.count - 1)
            if physical_offset < offset:
                break
            slot = value % self.slots
            struct.pack_into(">i", self._map, _HEADER.size + slot * _SLOT_SIZE, older)
            if older == 0:
                self.used_slots -= 1
            self.count -= 1
        if self.count > 1:
            _, self.end_offset, seconds, _ = self._entry(self.count - 1)
            self.end_timestamp = min(self.end_timestamp, self.begin_timestamp + seconds * 1000 + 999)
        else:
            self.begin_timestamp = self.end_timestamp = self.begin_offset = self.end_offset = 0
        self._write_header()

    def find(self, key: str, limit: int, begin_ms: int, end_ms: int) -> list[int]:
        """Offsets of records that may have `key` (equal hash) and were stored between, newest first."""
        value = key_hash(key)
        (number,) = struct.unpack_from(">i", self._map, _HEADER.size + value % self.slots * _SLOT_SIZE)
        found: list[int] = []
        while 0 < number < self.count and len(found) < limit:
            entry_hash, offset, seconds, older = self._entry(number)
            stored = self.begin_timestamp + seconds * 1000
            # An entry's time is rounded down to seconds from the begin time.
            if entry_hash == value and begin_ms - 999 <= stored <= end_ms:
                found.append(offset)
            if older >= number or stored < begin_ms - 999:
                break
            number = older
        return found

    def overlaps(self, begin_ms: int, end_ms: int) -> bool:
        """Whether entries lie between the two times."""
        return self.count > 1 and self.begin_timestamp <= end_ms and begin_ms <= self.end_timestamp

    def flush(self) -> int:
        """fsync; returns the store time up to which the file is on disk. May run in a thread."""
        until = self.end_timestamp
        if self._unsynced:
            self._unsynced = False  # first: entries may be added meanwhile
            try:
                sync_path(self.path)  # reaches pages written through the map, and lets other threads run
            except OSError:
                self._unsynced = True
                raise
        return until

    def repair(self) -> None:
        """After a crash: drop entries that did not reach the disk, and point the slots to those that did."""
        self._unsynced = True
        entries = np.frombuffer(self._map, _ENTRY_TYPE, self.count - 1, self._entry_at(1))
        offsets = entries["offset"].astype(np.int64)
        unwritten = (offsets == 0) & (entries["hash"] == 0)  # the log's first record is at 0, too
        wrong = np.flatnonzero((offsets[1:] < offsets[:-1]) | unwritten[1:])
        good = int(wrong[0]) + 1 if len(wrong) else len(offsets)
        slot_numbers = entries["hash"][:good].astype(np.int64) % self.slots
        slots = np.zeros(self.slots, ">i4")
        # Of several entries in a slot the newest counts: `maximum.at` takes the highest number.
        numbers = np.arange(1, good + 1)
        newest = np.zeros(self.slots, np.int64)
        np.maximum.at(newest, slot_numbers, numbers)
        slots[:] = newest
        self._map[_HEADER.size : self._first_entry] = slots.tobytes()
        self.used_slots = int((newest > 0).sum())
        self.count = good + 1
        if good:
            _, self.end_offset, _, _ = self._entry(good)
        self._write_header()

    def close(self) -> None:
        """Close the file; the map goes with its last user."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _entry_at(self, number: int) -> int:
        return self._first_entry + number * _ENTRY.size

    def _entry(self, number: int) -> tuple[int, int, int, int]:
        value, offset, seconds, older = _ENTRY.unpack_from(self._map, self._entry_at(number))
        return value, offset, seconds, older

    def _write_header(self) -> None:
        _HEADER.pack_into(
            self._map,
            0,
            self.begin_timestamp,
            self.end_timestamp,
            self.begin_offset,
            self.end_offset,
            self.used_slots,
            self.count,
        )


class Index:
    """All index files of a store."""

    __slots__ = ("_directory", "_entries", "_slots", "files")

    def __init__(self, directory: Path, slots: int, entries: int, *, safe_until: int | None) -> None:
        """Open what is there. After a crash `safe_until` is the store time of the checkpoint: files with
        later entries may be torn, and files without entries may have lost them. Such a file is deleted, and
        all that follow it, because the index is built again only from its end on."""
        self._directory = directory
        self._slots = slots
        self._entries = entries
        self.files: list[IndexFile] = []
        directory.mkdir(parents=True, exist_ok=True)
        size = _HEADER.size + slots * _SLOT_SIZE + entries * _ENTRY.size
        lost = False
        for path in sorted(p for p in directory.iterdir() if p.name.isdigit()):
            if lost or path.stat().st_size != size:  # cut short by a crash, or of another configuration
                path.unlink()
                lost = True
                continue
            file = IndexFile(path, slots, entries)
            # The clock may have been set back: a later file may have earlier times.
            if safe_until is not None and (file.count <= 1 or file.end_timestamp > safe_until):
                file.close()
                path.unlink()
                lost = True
            else:
                self.files.append(file)
        if safe_until is not None and self.files and self.files[-1].room > 0:
            self.files[-1].repair()

    @property
    def end_offset(self) -> int:
        """Physical offset of the newest indexed record, -1 if there is none."""
        for file in reversed(self.files):
            if file.count > 1:
                return file.end_offset
        return -1

    @property
    def end_timestamp(self) -> int:
        """Store time of the newest indexed record, in ms; 0 if there is none."""
        return self.files[-1].end_timestamp if self.files else 0

    def add(self, keys: Keys, now_ms: int) -> None:
        """Add keys in log order, opening further files as needed; raises `OSError` on a full disk."""
        while left := len(keys.hashes):
            if not self.files or self.files[-1].room <= 0:
                self.files.append(IndexFile(self._new_path(now_ms), self._slots, self._entries))
            file = self.files[-1]
            count = file.room
            if count < left:
                # What is lost with the newer file is indexed again from the record on behind that one's last.
                while count and keys.offsets[count - 1] == keys.offsets[count]:
                    count -= 1
                if not count and file.count > 1:
                    self.files.append(IndexFile(self._new_path(now_ms), self._slots, self._entries))
                    continue
                count = count or file.room  # more keys than a file has entries
            count = min(count, left)
            file.add(keys.rows(0, count))
            keys = keys.rows(count, left)

    def _new_path(self, now_ms: int) -> Path:
        newest = int(self.files[-1].path.name) if self.files else 0
        moment = datetime.fromtimestamp(now_ms // 1000)
        name = int(moment.strftime("%Y%m%d%H%M%S") + f"{now_ms % 1000:03d}")
        return self._directory / str(max(name, newest + 1))

    def find(self, topic: str, key: str, limit: int, begin_ms: int, end_ms: int) -> list[int]:
        """Offsets of records that may have `key` (equal hash), newest first."""
        found: list[int] = []
        for file in reversed(self.files):
            if len(found) >= limit:
                break
            if file.overlaps(begin_ms, end_ms):
                found += file.find(f"{topic}#{key}", limit - len(found), begin_ms, end_ms)
        return found

    def truncate(self, offset: int) -> None:
        """Forget records at or behind commit log `offset`."""
        for file in reversed(self.files):
            if file.count > 1 and file.end_offset < offset:
                break
            file.truncate(offset)
        while len(self.files) > 1 and self.files[-1].count <= 1:
            file = self.files.pop()
            file.close()
            file.path.unlink()

    def drop_before(self, offset: int) -> list[Path]:
        """Detach files that only know records before commit log `offset`; the last file stays. Returns the
        paths to unlink."""
        paths = []
        while len(self.files) > 1 and self.files[0].end_offset < offset:
            file = self.files.pop(0)
            file.close()
            paths.append(file.path)
        return paths

    def flush(self) -> int:
        """fsync what was written since the last call; returns the store time of the newest entry on disk. May
        run in a thread."""
        until = 0
        for file in list(self.files):
            until = file.flush() or until
        return until

    def close(self) -> None:
        """Close all files."""
        for file in self.files:
            file.close()
        self.files.clear()
