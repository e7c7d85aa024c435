"""Opens a store that may have been left in the middle of any operation. See ``docs/store.md``, "Recovery"."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from batonmq.protocol.message.layout import MIN_RECORD_SIZE, fields_struct
from batonmq.protocol.message.light import light_offsets
from batonmq.protocol.names import is_light
from batonmq.store.checkpoint import Checkpoint
from batonmq.store.commitlog import CommitLog
from batonmq.store.consumequeue import ConsumeQueue
from batonmq.store.mapped import MappedFile, MappedLog, read_path, sync_path
from batonmq.store.queues import ConsumeQueues
from batonmq.store.scan import SECTOR, ZERO_END, Damage, blank_size, check_record, read_records

log = logging.getLogger(__name__)

_PLACE = fields_struct("size", "queue_id", "queue_offset")
"""A record's size, queue id and queue offset."""
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
    files: MappedLog, queues: Iterable[ConsumeQueue], checkpoint: Checkpoint, *, clean: bool, crc: bool
) -> int:
    """A record's beginning such that the log and the consume queues before it are known to be good.

    After a clean stop that is where the consume queues end, unless the log has lost their last record or a
    part of it. After a crash it is the checkpoint's safe offset. Otherwise it is the newest file whose first
    message is older than the checkpoint's times.
    """
    safe = checkpoint.safe_offset
    if clean:
        end, size = max((queue.last_on_disk() for queue in queues), default=(0, 0))
        if not files.base < end <= files.end:
            return files.base
        file = files.file_at(end - size)
        lost = "" if file is None else _what_is_lost(file, end - size, size, crc=crc)
        if not lost:
            return end
        log.warning("at %d, where the last record of the consume queues is: %s", end - size, lost)
        safe = -1  # as the queues' end, it is what a clean stop left
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


def _what_is_lost(file: MappedFile, offset: int, size: int, *, crc: bool) -> str:
    """What is wrong with the record of this size that was on disk at `offset`; empty: nothing.

    Read without the map (see `MappedFile.zero`). What ends with one or two zero bytes is whole: another
    broker may have accepted such properties.
    """
    at = offset - file.base
    # First: what the consume queue says of the size may be anything, and be too much to read.
    if at + size > file.size or read_path(file.path, at, 4) != size.to_bytes(4, "big"):
        return f"it is none of {size} bytes"
    begin, end = at - at % SECTOR, min(-(-(at + size) // SECTOR) * SECTOR, file.size)
    data = read_path(file.path, begin, end - begin)
    found = check_record(data, at - begin, end - begin, offset, crc=crc)
    if isinstance(found, Damage):
        tail = data[: at - begin + size][-_RECORD_TAIL:]
        return "" if found.reason == ZERO_END and tail.strip(b"\0") else found.reason
    return ""


def mark_in_use(abort_path: Path) -> None:
    """From now on the next start takes a stop for a crash, until the file is removed."""
    abort_path.write_text(str(os.getpid()))


def recover(
    commit_log: CommitLog,
    queues: ConsumeQueues,
    checkpoint: Checkpoint,
    abort_path: Path,
    *,
    clean: bool,
    crc: bool,
) -> bool:
    """Find the end of the log and cut what is behind it, there and in the consume queues.

    `clean`: the last stop was a clean one. Returns whether everything was left as by a clean stop. The queues
    may still lack the last messages of the log.
    """
    files = commit_log.files
    on_disk, stopped_cleanly = checkpoint.safe_offset, clean
    clean = not _mend_queues(queues, files.base, checkpoint, abort_path) and clean
    start = starting_point(files, queues, checkpoint, clean=clean, crc=crc)
    walked = walk(files, start, crc=crc)
    if walked.damage is not None and not walked.damage.torn:
        log.error("commit log is cut at %d: %s", walked.end, walked.damage.reason)
    if not stopped_cleanly:
        log.warning(
            "the last stop was not clean: %d records checked from offset %d on, the log ends at %d",
            walked.records,
            start,
            walked.end,
        )
    files.cut_unread(walked.end)
    commit_log.set_end(walked.end)
    commit_log.lost_bytes = max(0, on_disk - walked.end)
    if commit_log.lost_bytes:
        log.error(
            "%s: the log ends at %d, but had been on disk up to %d: %d bytes are lost. Files were "
            "deleted, damaged or restored from an older copy, or the disk does not keep what it confirms",
            files.directory,
            walked.end,
            on_disk,
            commit_log.lost_bytes,
        )
    for file in files.files:
        if not clean and file.base + file.size > start:
            sync_path(file.path)
    commit_log.confirm_offset = min(max(checkpoint.confirm_offset, files.base), walked.end)
    known_good = min(start, commit_log.confirm_offset)
    for queue in queues:
        queue.load(known_good, trusted=clean, holds=partial(_holds, files, queue.topic, queue.queue_id))
    for path in queues.set_min_physical(files.base):
        path.unlink(missing_ok=True)  # the process was killed while it deleted expired files
    return clean


def _mend_queues(
    queues: Iterable[ConsumeQueue], min_offset: int, checkpoint: Checkpoint, abort_path: Path
) -> bool:
    """Make the files of each queue one run again where one is missing. True: what is behind a hole, or behind
    the last file, has to be rebuilt, as after a crash. The checkpoint records from where on before anything
    is deleted, so that a crash now, or a power cut before the new units are on disk, loses nothing."""
    rebuild = False

    def build_from(end: int) -> None:
        # Without a safe offset nothing is known to be on disk: then from the log's beginning.
        safe = min(end, checkpoint.safe_offset)
        checkpoint.safe_offset = max(safe, min_offset)
        checkpoint.save()
        mark_in_use(abort_path)

    for queue in queues:
        queue.drop_short()
        while (end := queue.hole()) is not None:
            expired = 0 < end <= min_offset  # all that is before the hole
            if not expired:
                rebuild = True
                log.error("%s: a file is missing; it is rebuilt from %d on", queue.directory, end)
                build_from(end)
            queue.close_hole(keep_newer=expired)
        if (end := queue.lost_end()) is not None:
            rebuild = True
            log.warning("%s: the last file may be missing; it is rebuilt from %d on", queue.directory, end)
            build_from(end)
            queue.forget_directory()
    return rebuild


def _holds(
    files: MappedLog, topic: str, queue_id: int, physical_offset: int, size: int, queue_offset: int
) -> bool:
    """Whether the log has a record of this size, queue id and queue offset there, or had it long ago."""
    file = files.file_at(physical_offset)
    if file is None:
        return physical_offset < files.base
    at = physical_offset - file.base
    if at + MIN_RECORD_SIZE > file.size:
        return False
    found = _PLACE.unpack_from(file.map, at)
    if found == (size, queue_id, queue_offset):
        return True
    if not is_light(topic) or found[0] != size:
        return False
    record = next(read_records(file.map, at, file.size), None)
    return record is not None and (topic, queue_offset) in light_offsets(record.topic, record.properties)
