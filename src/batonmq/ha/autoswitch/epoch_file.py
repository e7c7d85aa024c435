"""The epoch file on disk (`epochFileCheckpoint`), in RocketMQ's own checkpoint format.

Lines: number of entries; CRC-32 of the entry lines with the sign bit cleared (0: not checked); then
``epoch-startOffset`` each. The file is replaced atomically and fsynced before any caller continues, because
an epoch that is forgotten while its data stays makes the next handshake compare the wrong stretch.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

from batonmq.common.config import ConfigError
from batonmq.ha.autoswitch.epochs import EpochCache
from batonmq.protocol.ha_frames import EpochStart

MOST_EPOCH = (1 << 31) - 1
MOST_OFFSET = (1 << 63) - 1
"""RocketMQ keeps epochs as int, offsets as long."""


def encode(entries: Sequence[EpochStart]) -> bytes:
    """The file's contents."""
    body = "".join(f"{epoch}-{start}\n" for epoch, start in entries).encode()
    return f"{len(entries)}\n{zlib.crc32(body) & 0x7FFFFFFF}\n".encode() + body


def decode(data: bytes) -> tuple[EpochStart, ...]:
    """Entries of a file. Raises ValueError saying what is wrong with it."""
    lines = data.decode("ascii").splitlines()
    if len(lines) < 2:
        raise ValueError("the size and checksum lines are missing")
    expected, checksum = int(lines[0]), int(lines[1])
    body = "".join(f"{line}\n" for line in lines[2:]).encode()
    if checksum != 0 and checksum != zlib.crc32(body) & 0x7FFFFFFF:
        raise ValueError("the checksum does not match the entries")
    entries = []
    for line in lines[2:]:
        epoch, _, start = line.partition("-")
        entry = EpochStart(int(epoch), int(start))
        if not (0 <= entry.epoch <= MOST_EPOCH and 0 <= entry.start_offset <= MOST_OFFSET):
            raise ValueError(f"no epoch is {line[:100]!r}")
        entries.append(entry)
    if len(entries) != expected:
        raise ValueError(f"{expected} entries announced, {len(entries)} found")
    return tuple(entries)


class EpochFile:
    """An `EpochCache` of which each change is on disk before it takes effect. All methods block, briefly.

    Each method that changes the cache raises OSError if the file cannot be written, and has no effect then.
    """

    def __init__(self, path: Path, entries: Sequence[EpochStart] = (), *, doubtful: bool = False) -> None:
        self.path = path
        self.cache = EpochCache(entries)
        self.doubtful = doubtful or not entries
        """Nothing was found, or only RocketMQ's copy of an earlier state: the log may have more epochs."""

    @classmethod
    def load(cls, path: Path) -> EpochFile:
        """Read the file, or its ``.bak`` if RocketMQ left one and the file is missing or broken.

        Raises ConfigError if something is there and none of it can be read: a replica that forgets its epochs
        would throw its log away at the next handshake.
        """
        broken: list[str] = []
        for candidate in (path, path.with_name(path.name + ".bak")):
            try:
                data = candidate.read_bytes()
            except FileNotFoundError:
                continue
            except OSError as error:
                broken.append(f"{candidate}: {error.strerror or error}")
                continue
            if not data:
                continue
            try:
                return cls(path, decode(data), doubtful=candidate != path)
            except ValueError as error:
                broken.append(f"{candidate}: {error}")
        if broken:
            raise ConfigError(
                f"cannot read the epoch file {'; '.join(broken)}. Restore it, or empty the whole store "
                "directory to copy everything from the master"
            )
        return cls(path)

    def append(self, epoch: int, start_offset: int) -> None:
        """See `EpochCache.append`; durable on return."""
        self._change(lambda cache: cache.append(epoch, start_offset))

    def extend(self, entries: Sequence[EpochStart]) -> None:
        """Append several entries with one write."""

        def add(cache: EpochCache) -> bool:
            changed = False
            for epoch, start in entries:
                changed |= cache.append(epoch, start)
            return changed

        self._change(add)

    def truncate_suffix(self, offset: int) -> None:
        """See `EpochCache.truncate_suffix`; durable on return."""
        self._change(lambda cache: cache.truncate_suffix(offset))

    def truncate_prefix(self, min_offset: int) -> None:
        """See `EpochCache.truncate_prefix`; durable on return."""
        self._change(lambda cache: cache.truncate_prefix(min_offset))

    def clear(self) -> None:
        """See `EpochCache.clear`; durable on return."""
        self._change(lambda cache: cache.clear())

    def _change(self, change: Callable[[EpochCache], bool]) -> None:
        changed = EpochCache(self.cache.entries)
        if change(changed):
            self._write(changed.entries)
            self.cache.assign(changed)

    def _write(self, entries: Sequence[EpochStart]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_name(self.path.name + ".tmp")
        with temporary.open("wb") as file:
            file.write(encode(entries))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self.path)
        directory = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
