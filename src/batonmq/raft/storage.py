"""Raft's files: a segmented log that also holds term and vote, and snapshots.

Layout (big endian, CRC-32); the last digit of each magic is the version of the format:

    log-<sequence>.raft
        head     magic "BMQRLOG1", length u32, crc u32, msgpack SegmentHead
        frame*   magic u32, length u32, crc of the payload u32, crc of the 12 bytes before u32,
                 msgpack Frame, end mark u8
    snapshot-<index>-<term>.raft
                 magic "BMQRSNP1", length u64, crc u32, msgpack Snapshot
    *.tmp        unfinished; removed at start

One ``save`` is one frame, one write and one fsync, and it begins only when the one before is durable. So a
crash can damage only the last frame of the last segment: its bytes end early or, where there was room but not
yet data, hold a sector of zeros. Such a tail is cut. Any other damage means that the disk changed bytes it
had promised to keep: ``open`` refuses with StorageCorrupt, naming file and offset, since going on would
forget votes or acknowledged entries. Zeros after the last frame of a segment are room made ahead.

A frame whose first index is not beyond the end of the log replaces what was there: truncation is an append.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
from zlib_ng.zlib_ng import crc32

from batonmq.raft.disk import TEMPORARY, AppendFile, Disk
from batonmq.raft.errors import StorageCorrupt
from batonmq.raft.layout import Frame, SegmentHead, decode_frame, decode_head, decode_snapshot, encode
from batonmq.raft.log import RaftLog
from batonmq.raft.messages import Entry, Snapshot, SnapshotMeta
from batonmq.raft.state import HardState, Save

_LOG_MAGIC: Final = b"BMQRLOG1"
_SNAPSHOT_MAGIC: Final = b"BMQRSNP1"
_HEAD: Final = struct.Struct(">8sII")
_SNAPSHOT_HEAD: Final = struct.Struct(">8sQI")
_FRAME: Final = struct.Struct(">IIII")
_FRAME_CHECKED: Final = struct.Struct(">III")
_FRAME_MAGIC: Final = 0xB47F4A3E
REMEDY: Final = (
    "restore this node from its peers (remove it from the group, empty its directory, add it under a new id)"
)
_END_MARK: Final = b"\xa5"
"""A nonzero last byte: a frame's last sector is never all zeros unless it was not written."""
_SECTOR_BYTES: Final = 512


@dataclass(slots=True)
class Recovered:
    """What ``Storage.open`` found. ``cut_bytes`` of an unfinished write were cut off."""

    hard_state: HardState
    log: RaftLog
    snapshot: Snapshot | None
    cut_bytes: int


@dataclass(slots=True)
class _Segment:
    sequence: int
    name: str
    last_index_before: int
    size: int


class Storage:
    """The files of one node. All methods block; the shell calls them in an executor, one at a time, except
    ``write_snapshot``, which may run beside the others."""

    def __init__(self, disk: Disk, group: str, node: str, *, segment_bytes: int) -> None:
        self._disk = disk
        self._group = group
        self._node = node
        self._segment_bytes = segment_bytes
        self._segments: list[_Segment] = []
        self._active: AppendFile | None = None
        self._last = (0, 0)

    # ------------------------------------------------------------------ start

    def open(self) -> Recovered:
        """Read everything, cut an unfinished tail, make ready to append.

        Raises StorageCorrupt (one line naming file and offset) or OSError.
        """
        names = self._disk.names()
        for name in names:
            if name.endswith(TEMPORARY):
                self._disk.remove(name)
        snapshot = self.load_snapshot()
        replay = _Replay(snapshot.meta if snapshot else None)
        segments = [name for name in names if name.startswith("log-") and name.endswith(".raft")]
        cut_bytes = 0
        for place, name in enumerate(segments):
            is_last = place == len(segments) - 1
            cut_bytes = self._read_segment(name, replay, is_last=is_last)
        replay.finish()
        log = replay.log()
        self._last = replay.raw_last
        if segments:
            self._active = self._disk.open_append(segments[-1])
        else:
            self._begin_segment(replay.hard_state)
        if self._last != (log.last_index, log.last_term):
            # The snapshot is ahead of the entries on disk: say where the log continues.
            self._write_frame(replay.hard_state, (log.base_index, log.base_term), log.last_index + 1, [])
            self._last = (log.last_index, log.last_term)
        return Recovered(replay.hard_state, log, snapshot, cut_bytes)

    def _read_segment(self, name: str, replay: _Replay, *, is_last: bool) -> int:
        data = self._disk.read(name)
        path = self._disk.path(name)
        offset, head = self._read_head(data, path)
        sequence = int(name.removeprefix("log-").removesuffix(".raft"))
        if self._segments and sequence != self._segments[-1].sequence + 1:
            raise StorageCorrupt(f"{path}: the segment before it is missing")
        replay.begin_segment(head, path, is_first=not self._segments)
        self._segments.append(_Segment(sequence, name, head.last_index, len(data)))
        # No frame ends with a zero: what follows its end mark is room.
        written = max(offset, len(data.rstrip(b"\0")))
        while offset < written:
            end = _frame_end(data, offset)
            if end is None:
                if not is_last or not _is_torn(data[:written], offset):
                    raise StorageCorrupt(f"{path}: offset {offset}: damaged record; {REMEDY}")
                break
            try:
                frame = decode_frame(memoryview(data)[offset + _FRAME.size : end - 1])
            except msgspec.MsgspecError as e:
                raise StorageCorrupt(f"{path}: offset {offset}: not a log record of this version: {e}") from e
            replay.take(frame, path, offset)
            offset = end
        if is_last and offset < len(data):
            # The next frame is written where the last one ends, and nothing but zeros may follow it.
            self._disk.truncate(name, offset)
        self._segments[-1].size = offset
        return written - offset

    def _read_head(self, data: bytes, path: str) -> tuple[int, SegmentHead]:
        if len(data) >= _HEAD.size:
            magic, length, crc = _HEAD.unpack_from(data)
            end = _HEAD.size + length
            body = data[_HEAD.size : end]
            if magic == _LOG_MAGIC and len(body) == length and crc32(body) == crc:
                try:
                    head = decode_head(body)
                except msgspec.MsgspecError as e:
                    raise StorageCorrupt(f"{path}: offset 0: not a segment of this version: {e}") from e
                if (head.group, head.node) != (self._group, self._node):
                    raise StorageCorrupt(
                        f"{path}: belongs to node {head.node!r} of group {head.group!r}, "
                        f"not to {self._node!r} of {self._group!r}"
                    )
                return end, head
        _check_version(data, _LOG_MAGIC, path)
        # The head was durable before the file got its name.
        raise StorageCorrupt(f"{path}: offset 0: damaged segment head")

    # ------------------------------------------------------------------ log

    def save(self, save: Save) -> None:
        """Make one ``Save`` durable. After an OSError nothing is known of the disk: the node must stop."""
        reset = None
        if save.snapshot is not None:
            self.write_snapshot(save.snapshot)
            reset = (save.snapshot.meta.index, save.snapshot.meta.term)
        self._write_frame(save.hard_state, reset, save.first_index, save.entries)
        self._last = (save.last_index, save.last_term)
        if self._segments[-1].size >= self._segment_bytes:
            self._begin_segment(save.hard_state)

    def _write_frame(
        self, hard: HardState, reset: tuple[int, int] | None, first_index: int, entries: list[Entry]
    ) -> None:
        payload = encode(Frame(hard.term, hard.voted_for, hard.commit, reset, first_index, entries))
        checked = _FRAME_CHECKED.pack(_FRAME_MAGIC, len(payload), crc32(payload))
        assert self._active is not None, "open() comes first"
        self._active.write(b"".join((checked, crc32(checked).to_bytes(4, "big"), payload, _END_MARK)))
        self._active.sync()
        self._segments[-1].size += _FRAME.size + len(payload) + 1

    def drop_before(self, index: int) -> None:
        """Delete segments and snapshots that a snapshot at ``index`` makes needless."""
        dropped = False
        while len(self._segments) > 1 and self._segments[1].last_index_before <= index:
            # Oldest first, so that a crash leaves no hole.
            self._disk.remove(self._segments.pop(0).name)
            dropped = True
        for name in self._snapshot_names()[:-1]:
            self._disk.remove(name)
            dropped = True
        if dropped:
            self._disk.sync_names()

    def close(self) -> None:
        if self._active is not None:
            self._active.close()
            self._active = None

    def _begin_segment(self, hard: HardState) -> None:
        sequence = self._segments[-1].sequence + 1 if self._segments else 1
        name = f"log-{sequence:016d}.raft"
        body = encode(
            SegmentHead(self._group, self._node, hard.term, hard.voted_for, hard.commit, *self._last)
        )
        data = _HEAD.pack(_LOG_MAGIC, len(body), crc32(body)) + body
        self._write_whole(name, data)
        self.close()
        self._active = self._disk.open_append(name)
        self._segments.append(_Segment(sequence, name, self._last[0], len(data)))

    def _write_whole(self, name: str, *parts: bytes) -> None:
        """A file that is either complete and durable or not there."""
        temporary = name + TEMPORARY
        self._disk.remove(temporary)
        file = self._disk.open_append(temporary)
        try:
            for part in parts:
                file.write(part)
            file.sync()
        finally:
            file.close()
        self._disk.rename(temporary, name)
        self._disk.sync_names()

    # ------------------------------------------------------------------ snapshots

    def write_snapshot(self, snapshot: Snapshot) -> None:
        """Make ``snapshot`` durable; older ones stay until ``drop_before``."""
        body = encode(snapshot)
        self._write_whole(
            _snapshot_name(snapshot.meta),
            _SNAPSHOT_HEAD.pack(_SNAPSHOT_MAGIC, len(body), crc32(body)),
            body,
        )

    def load_snapshot(self) -> Snapshot | None:
        """The newest snapshot, if any. Raises StorageCorrupt."""
        names = self._snapshot_names()
        if not names:
            return None
        path = self._disk.path(names[-1])
        data = self._disk.read(names[-1])
        if len(data) >= _SNAPSHOT_HEAD.size:
            magic, length, crc = _SNAPSHOT_HEAD.unpack_from(data)
            body = memoryview(data)[_SNAPSHOT_HEAD.size :]
            if magic == _SNAPSHOT_MAGIC and len(body) == length and crc32(body) == crc:
                try:
                    return decode_snapshot(body)
                except msgspec.MsgspecError as e:
                    raise StorageCorrupt(f"{path}: not a snapshot of this version: {e}; {REMEDY}") from e
        _check_version(data, _SNAPSHOT_MAGIC, path)
        raise StorageCorrupt(f"{path}: offset 0: damaged snapshot; {REMEDY}")

    def snapshot_path(self, meta: SnapshotMeta) -> str:
        """How messages name its file."""
        return self._disk.path(_snapshot_name(meta))

    def _snapshot_names(self) -> list[str]:
        return [n for n in self._disk.names() if n.startswith("snapshot-") and n.endswith(".raft")]


def _snapshot_name(meta: SnapshotMeta) -> str:
    return f"snapshot-{meta.index:020d}-{meta.term:020d}.raft"


def _check_version(data: bytes, magic: bytes, path: str) -> None:
    """Raises StorageCorrupt for a file of another version."""
    name, version, own = magic[:-1], data[len(magic) - 1 : len(magic)], magic[-1:]
    if data.startswith(name) and version.isdigit() and version != own:
        raise StorageCorrupt(
            f"{path}: its format has version {version.decode()}, this controller reads version {own.decode()}"
        )


class _Replay:
    """Builds the log from segments read in order, above the newest snapshot."""

    def __init__(self, snapshot: SnapshotMeta | None) -> None:
        self.hard_state = HardState()
        self.raw_last = (0, 0)
        """Index and term of the last entry on disk, whether or not the snapshot covers it."""
        self._base, self._base_term = (snapshot.index, snapshot.term) if snapshot else (0, 0)
        self._term_at_base: int | None = 0 if snapshot is None else None
        self._entries: list[Entry] = []

    def begin_segment(self, head: SegmentHead, path: str, *, is_first: bool) -> None:
        if not is_first:
            if (head.last_index, head.last_term) != self.raw_last:
                raise StorageCorrupt(f"{path}: offset 0: does not continue the segment before it")
            return
        if head.last_index > self._base:
            raise StorageCorrupt(
                f"{path}: offset 0: the log begins at {head.last_index + 1}, "
                f"but the newest snapshot ends at {self._base}"
            )
        self.raw_last = (head.last_index, head.last_term)
        if head.last_index == self._base:
            self._term_at_base = head.last_term
        self.hard_state = HardState(head.term, head.voted_for, head.commit)

    def take(self, frame: Frame, path: str, offset: int) -> None:
        if frame.reset is not None:
            self._cut(0)
            self.raw_last = frame.reset
            if frame.reset[0] == self._base:
                self._term_at_base = frame.reset[1]
            elif frame.reset[0] > self._base:
                raise StorageCorrupt(f"{path}: offset {offset}: its snapshot at {frame.reset[0]} is missing")
        if frame.term < self.hard_state.term or frame.first_index > self.raw_last[0] + 1:
            raise StorageCorrupt(f"{path}: offset {offset}: record out of order")
        self.hard_state = HardState(frame.term, frame.voted_for, frame.commit)
        if not frame.entries:
            return
        self._cut(frame.first_index)
        skip = max(0, self._base + 1 - frame.first_index)
        self._entries.extend(frame.entries[skip:])
        if frame.first_index <= self._base < frame.first_index + len(frame.entries):
            self._term_at_base = frame.entries[self._base - frame.first_index].term
        self.raw_last = (frame.first_index + len(frame.entries) - 1, frame.entries[-1].term)

    def _cut(self, index: int) -> None:
        """Drop ``index`` and all after it."""
        del self._entries[max(0, index - self._base - 1) :]
        if self._base > 0 and index <= self._base:
            self._term_at_base = None

    def finish(self) -> None:
        if self._entries and self._term_at_base != self._base_term:
            # The snapshot came from a leader and replaced these entries; the crash came before the log
            # said so.
            self._entries.clear()
        last = self._base + len(self._entries)
        self.hard_state.commit = max(min(self.hard_state.commit, last), self._base)

    def log(self) -> RaftLog:
        return RaftLog(self._base, self._base_term, self._entries)


def _frame_end(data: bytes, offset: int) -> int | None:
    """Where the frame at ``offset`` ends, or None if it is not whole and right."""
    if offset + _FRAME.size > len(data):
        return None
    magic, length, crc, header_crc = _FRAME.unpack_from(data, offset)
    if magic != _FRAME_MAGIC or crc32(data[offset : offset + _FRAME_CHECKED.size]) != header_crc:
        return None
    start = offset + _FRAME.size
    end = start + length + 1
    if end > len(data) or data[end - 1 : end] != _END_MARK:
        return None
    return end if crc32(memoryview(data)[start : end - 1]) == crc else None


def _is_torn(data: bytes, offset: int) -> bool:
    """Whether a crash during the last write explains the bad frame at ``offset``."""
    rest = data[offset:]
    header_is_right = (
        len(rest) >= _FRAME.size
        and crc32(rest[: _FRAME_CHECKED.size]) == int.from_bytes(rest[12:16], "big")
        and int.from_bytes(rest[:4], "big") == _FRAME_MAGIC
    )
    if len(rest) < _FRAME.size:
        return True
    if header_is_right:
        length = int.from_bytes(rest[4:8], "big")
        frame_size = _FRAME.size + length + 1
        if frame_size > len(rest):
            return True
        if frame_size < len(rest):
            return False  # something follows, so this frame was durable once
    return any(not any(sector) for sector in _sectors(rest, offset))


def _sectors(rest: bytes, offset: int) -> Sequence[bytes]:
    """``rest``, which begins at ``offset`` of its file, cut at the disk's sector boundaries."""
    first = _SECTOR_BYTES - offset % _SECTOR_BYTES
    return [rest[:first], *(rest[at : at + _SECTOR_BYTES] for at in range(first, len(rest), _SECTOR_BYTES))]
