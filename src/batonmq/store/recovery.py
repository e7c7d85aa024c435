"""Opening a store that may have been left in the middle of anything. See ``docs/store.md``, "Recovery"."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from batonmq.store.checkpoint import Checkpoint
from batonmq.store.consumequeue import ConsumeQueue
from batonmq.store.mapped import MappedLog
from batonmq.store.scan import SECTOR, Damage, blank_size, check_record

log = logging.getLogger(__name__)

_RECORD_TAIL = 3
"""Bytes at the end of a record that are seldom all zero: properties, or a topic and two of their length. If
they were lost, so was what their sector holds behind them."""


@dataclass(frozen=True, slots=True)
class Walk:
    """Outcome of walking a log."""

    end: int
    """Where the last whole, valid record (or the filler behind it) ends."""
    records: int
    damage: Damage | None
    """Why it ended; None at the very end of the last file."""


def walk(files: MappedLog, start: int, *, crc: bool) -> Walk:
    """Check record by record from `start`, which must be a record's beginning, as far as they are valid."""
    position, count = start, 0
    while (file := files.file_at(position)) is not None:
        with memoryview(file.map) as view:
            at = position - file.base
            while at < file.size:
                # A page not yet touched: on a full tmpfs, reading a hole through the map would be SIGBUS.
                if (at & 4095 == 0 or at & 4095 > 4088) and file.is_zero(at, 8):
                    return Walk(file.base + at, count, Damage(file.base + at, "zeros", torn=True))
                size = check_record(view, at, file.size, file.base + at, crc=crc)
                if isinstance(size, Damage):
                    filler = blank_size(view, at, file.size)
                    if filler and at + filler == file.size:
                        at = file.size
                        break
                    return Walk(file.base + at, count, size)
                at += size
                count += 1
        position = file.base + file.size
    return Walk(position, count, None)


def starting_point(
    files: MappedLog, queues: Iterable[ConsumeQueue], checkpoint: Checkpoint, *, clean: bool
) -> int:
    """A record's beginning such that the log and the consume queues before it are known to be good.

    After a clean stop that is where the consume queues end. After a crash it is the checkpoint's safe offset,
    or, without one, the newest file whose first message is older than the checkpoint's times.
    """
    if clean:
        end = max((queue.last_physical_end() for queue in queues), default=0)
        if files.base < end <= files.end:
            return end
        return files.base
    safe = checkpoint.safe_offset
    if files.base <= safe <= files.end:
        file = files.file_at(safe)
        if file is None:
            return safe
        # Behind the safe offset there may be torn bytes, but a record that is none is a wrong offset.
        at = safe - file.base
        found = check_record(file.map, at, file.size, safe, crc=False)
        behind = min(-(-at // SECTOR) * SECTOR, file.size)
        if at >= _RECORD_TAIL and file.is_zero(at - _RECORD_TAIL, behind - at + _RECORD_TAIL):
            log.warning("zeros in front of the checkpoint's safe offset %d, where a record ended", safe)
        elif not isinstance(found, Damage) or found.torn or blank_size(file.map, at, file.size):
            return safe
        else:
            log.warning("no record at the checkpoint's safe offset %d: %s", safe, found.reason)
    for file in reversed(files.files):
        if isinstance(check_record(file.map, 0, file.size, file.base, crc=False), Damage):
            continue
        flag = int.from_bytes(file.map[36:40], "big")
        at = 68 if flag & 0x10 else 56
        stored = int.from_bytes(file.map[at : at + 8], "big")
        if 0 < stored <= checkpoint.min_timestamp:
            return file.base
    return files.base
