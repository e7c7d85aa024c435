"""The message store: commit log, consume queues, index and checkpoint of one broker, as one object.

Lives on the event loop's thread; only `flush` and `flush_queues` may run in another one. The files are
RocketMQ's, byte by byte. What is appended is written with one ``pwrite`` a turn; consume queues follow at
once, or, when messages must be confirmed by replicas first, as far as the confirm offset; the index follows
when asked.

Delay levels, transactions and the timer wheel belong above: they put and get messages of system topics.
"""

from __future__ import annotations

import logging
import os
import struct
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from batonmq.common.clock import Clock
from batonmq.protocol.message import (
    BLANK_SIZE,
    MAX_PROPERTIES_BYTES,
    MIN_RECORD_SIZE,
    TRANSACTION_MASK,
    Buffer,
    MessageFormatError,
    StoredMessage,
    encode_blank,
    encode_preamble,
    scan_batch,
    topic_field,
)
from batonmq.protocol.names import SCHEDULE_TOPIC
from batonmq.store.checkpoint import Checkpoint
from batonmq.store.config import StoreConfig
from batonmq.store.consumequeue import FILLER_SIZE, UNIT, ConsumeQueue, OpenFiles, no_queue_reason
from batonmq.store.disk import DiskState, expired_count, is_delete_hour, judge, used_ratio
from batonmq.store.errors import OffsetGap, StoreError
from batonmq.store.index import Index, Key, keys_of
from batonmq.store.lock import StoreLock
from batonmq.store.mapped import MappedFile, MappedLog, sync_path
from batonmq.store.recovery import starting_point, walk
from batonmq.store.results import (
    Boundary,
    GetResult,
    GetStatus,
    PutResult,
    PutStatus,
    QueryResult,
    QueueBounds,
)
from batonmq.store.scan import NO_UNIT, blank_size, delivery_time, read_record, read_records, tags_code

__all__ = ["Boundary", "GetResult", "GetStatus", "MessageStore", "PutResult", "PutStatus", "QueueBounds"]

log = logging.getLogger(__name__)

_SHORT = struct.Struct(">h")
_SIZE_MAGIC = struct.Struct(">ii")
_PLACE = struct.Struct(">i8xi4xq")
"""A record's size, queue id and queue offset."""
_MAX_PENDING = 200_000
"""Units kept in memory while they wait for confirmation; beyond that they are read again from the log."""
_DISPATCH_STEP = 64 << 20
"""Bytes of log."""
_MAX_PULL_BYTES = 128 << 20

QueueKey = tuple[str, int]


class MessageStore:
    """See the module. Offsets are commit log ("physical") or queue offsets, never mixed."""

    def __init__(
        self,
        config: StoreConfig,
        clock: Clock,
        lock: StoreLock,
        *,
        wait_for_confirm: bool,
        delays_ms: Sequence[int],
        disk_usage: Callable[[Path], float],
    ) -> None:
        """Use `open`."""
        self.config = config
        self._clock = clock
        self._lock = lock
        self._wait = wait_for_confirm
        self._delays_ms = delays_ms
        self._disk_usage = disk_usage
        self._abort_path = config.root / "abort"
        clean = not self._abort_path.exists()
        self._checkpoint = Checkpoint.load(config.root / "checkpoint")
        self._log = MappedLog(config.commit_log_path, config.mapped_file_size_commit_log)
        self._open_files = OpenFiles()
        self._dirty: deque[tuple[ConsumeQueue | None, str]] = deque()
        self._grown: dict[ConsumeQueue, None] = {}
        self._queues: dict[QueueKey, ConsumeQueue] = {}
        self._index: Index | None = None
        self._index_position = 0
        self._pending: deque[tuple[int, ConsumeQueue | None, int, bytes]] = deque()
        """(end of the record, queue, queue offset, unit) for all that lies between `_dispatched` and the end,
        if `_pending_whole`."""
        self._pending_whole = True
        self._without_queue = 0
        """Messages of the log that no consume queue can hold."""
        self._offsets_known = False
        """Each queue's `next_offset` counts everything in the log."""
        self._flush_lock = threading.Lock()
        self._offsets_lock = threading.Lock()
        """Orders the flushing thread's results and truncation; held for moments."""
        self._truncations = 0
        self._synced_files = -1
        self._failure: str | None = None
        self._disk = DiskState(writable=True, clean=False, forcibly=False)
        self._closed = False
        self.max_offset = 0
        """Commit log offset after the last byte appended."""
        self.flushed_offset = 0
        """Everything before is on disk."""
        self.lost_bytes = 0
        """What had been on disk and was no longer there when the store was opened: nothing a crash does."""
        self._confirm = 0
        self._dispatched = 0
        self._last_timestamp = 0
        self._memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        self._recover(clean)
        self._opened_at = self.max_offset
        """Of what is before, nobody knows whether it is in memory."""
        self._abort_path.write_text(str(os.getpid()))

    @classmethod
    def open(
        cls,
        config: StoreConfig,
        clock: Clock,
        *,
        wait_for_confirm: bool,
        delays_ms: Sequence[int] = (),
        disk_usage: Callable[[Path], float] = used_ratio,
    ) -> MessageStore:
        """Load and recover the store in `config.root`, which is created if it is missing.

        `wait_for_confirm`: messages reach consumers only below `confirm_offset` (controller mode).
        `delays_ms`: the delay of each level, for the units of delayed messages.
        Raises `StoreLocked`, `StoreError` or `OSError`, naming the file.
        """
        config.root.mkdir(parents=True, exist_ok=True)
        lock = StoreLock(config.root / "lock")
        try:
            return cls(
                config,
                clock,
                lock,
                wait_for_confirm=wait_for_confirm,
                delays_ms=delays_ms,
                disk_usage=disk_usage,
            )
        except BaseException:
            lock.release()
            raise

    # ------------------------------------------------------------------------------------------- recovery

    def _recover(self, clean: bool) -> None:
        config, checkpoint = self.config, self._checkpoint
        for topic_path in sorted(self.config.consume_queue_path.glob("*/*")):
            if topic_path.name.isdigit() and topic_path.is_dir():
                self._queue(topic_path.parent.name, int(topic_path.name))
        on_disk, stopped_cleanly = checkpoint.safe_offset, clean
        clean = not self._mend_queues() and clean
        start = starting_point(self._log, self._queues.values(), checkpoint, clean=clean)
        walked = walk(self._log, start, crc=config.check_crc_on_recover)
        if walked.damage is not None and not walked.damage.torn:
            log.error("commit log is cut at %d: %s", walked.end, walked.damage.reason)
        if not stopped_cleanly:
            log.warning(
                "the last stop was not clean: %d records checked from offset %d on, the log ends at %d",
                walked.records,
                start,
                walked.end,
            )
        self._log.cut_unread(walked.end)
        self.max_offset = self.flushed_offset = walked.end
        self.lost_bytes = max(0, on_disk - walked.end)
        if self.lost_bytes:
            log.error(
                "%s: the log ends at %d, but had been on disk up to %d: %d bytes are lost. Files were "
                "deleted, damaged or restored from an older copy, or the disk does not keep what it confirms",
                config.commit_log_path,
                walked.end,
                on_disk,
                self.lost_bytes,
            )
        for file in self._log.files:
            if not clean and file.base + file.size > start:
                sync_path(file.path)
        self._confirm = min(max(checkpoint.confirm_offset, self.min_offset), self.max_offset)
        known_good = min(start, self._confirm) if self._wait else start
        for queue in self._queues.values():
            queue.load(known_good, trusted=clean, holds=partial(self._holds, queue.queue_id))
        self._dispatched = max((queue.end_physical for queue in self._queues.values()), default=0)
        self._dispatched = max(self._dispatched, self.min_offset)
        self._set_queue_minima()
        self._open_index(None if clean else checkpoint.index_timestamp)
        self._pending_whole = False
        self.dispatch()

    def _mend_queues(self) -> bool:
        """Make one run again of the files of queues of which one is missing. True: what is behind a hole is
        to be built anew, as after a crash. The checkpoint says from where on before anything is deleted, so
        that a crash now, or a power cut before the new units are on disk, loses nothing."""
        rebuild = False
        for queue in self._queues.values():
            while (end := queue.hole()) is not None:
                expired = 0 < end <= self.min_offset  # all that is before the hole
                if not expired:
                    rebuild = True
                    log.error("%s: a file is missing; it is built anew from %d on", queue.directory, end)
                    # Without a safe offset nothing is known to be on disk: then from the log's beginning.
                    safe = min(end, self._checkpoint.safe_offset)
                    self._checkpoint.safe_offset = max(safe, self.min_offset)
                    self._checkpoint.save()
                    self._abort_path.write_text(str(os.getpid()))
                queue.close_hole(keep_newer=expired)
        return rebuild

    def _holds(self, queue_id: int, physical_offset: int, size: int, queue_offset: int) -> bool:
        """Whether the log has a record of this size, queue id and queue offset there, or had it long ago."""
        file = self._log.file_at(physical_offset)
        if file is None:
            return physical_offset < self.min_offset
        at = physical_offset - file.base
        if at + MIN_RECORD_SIZE > file.size:
            return False
        found = _PLACE.unpack_from(file.map, at)
        return bool(found == (size, queue_id, queue_offset))

    def _open_index(self, safe_until: int | None) -> None:
        if not self.config.message_index_enable:
            return
        self._index = Index(
            self.config.index_path,
            self.config.max_hash_slot_num,
            self.config.max_index_num,
            safe_until=safe_until,
        )
        self._index.truncate(self.max_offset)
        self._index_position = self._record_after(self._index.end_offset)

    def _record_after(self, offset: int) -> int:
        """Where the record behind the one at `offset` begins; the log's first if there is none."""
        file = self._log.file_at(offset) if offset >= self.min_offset else None
        if file is None or offset >= self.max_offset:
            return self.min_offset
        size: int = _SIZE_MAGIC.unpack_from(file.map, offset - file.base)[0]
        return offset + max(0, size)

    # -------------------------------------------------------------------------------------------- offsets

    @property
    def min_offset(self) -> int:
        """First commit log offset that is still there."""
        return self._log.base

    @property
    def dispatched_offset(self) -> int:
        """Consume queues hold every message before this commit log offset."""
        return self._dispatched

    @property
    def confirm_offset(self) -> int:
        """Messages before it are safe on all replicas that count; the end without `wait_for_confirm`."""
        return min(self._confirm, self.max_offset) if self._wait else self.max_offset

    @confirm_offset.setter
    def confirm_offset(self, offset: int) -> None:
        self._confirm = offset

    @property
    def last_timestamp(self) -> int:
        """Store time in ms of the newest message known; 0 if none was seen since the store was opened."""
        return self._last_timestamp

    # ---------------------------------------------------------------------------------------------- write

    def put(self, batch: Sequence[StoredMessage]) -> list[PutResult]:
        """Append the messages of one loop turn; one result each, in order.

        Messages that cannot be stored are refused one by one. If the disk refuses (CREATE_MAPPED_FILE_FAILED)
        none is stored. An accepted message is in the page cache, not on disk: see `flush`.
        """
        if self._failure is not None or self._closed or not self._disk.writable:
            return [PutResult(PutStatus.SERVICE_NOT_AVAILABLE)] * len(batch)
        if not self._offsets_known:
            self._learn_queue_offsets()
        now = max(self._clock.now_ms(), self._last_timestamp)
        max_body = self.config.max_message_size
        file_size = self._log.file_size
        position = segment = self.max_offset
        file_end = position - position % file_size + file_size
        parts: list[Buffer] = []
        segments: list[tuple[int, list[Buffer]]] = []
        units: list[tuple[int, ConsumeQueue | None, int, bytes]] = []
        results: list[PutResult] = []
        before: dict[ConsumeQueue, int] = {}
        queues = self._queues
        ok = PutStatus.PUT_OK
        pack_unit = UNIT.pack
        for message in batch:
            body, properties = message.body, message.properties
            if len(body) > max_body:
                results.append(PutResult(PutStatus.MESSAGE_ILLEGAL))
                continue
            try:
                magic, topic = topic_field(message.topic)
                items = _batch_items(message) if message.batch else _single_item(message)
            except MessageFormatError as error:
                log.debug("message for %s refused: %s", message.topic, error)
                results.append(PutResult(PutStatus.MESSAGE_ILLEGAL))
                continue
            if not items:
                results.append(PutResult(PutStatus.PROPERTIES_SIZE_EXCEEDED))
                continue
            fixed = 72 + len(message.born_host) + len(message.store_host) + len(topic)
            if fixed + len(body) + len(properties) + 2 + BLANK_SIZE > file_size and not _fit(
                items, file_size - fixed - BLANK_SIZE
            ):
                results.append(PutResult(PutStatus.MESSAGE_ILLEGAL))
                continue
            queue = queues.get((message.topic, message.queue_id))
            if queue is None:
                reason = no_queue_reason(message.topic, message.queue_id)
                if reason is not None:
                    log.warning("message for topic %.300r refused: it %s", message.topic, reason)
                    results.append(PutResult(PutStatus.MESSAGE_ILLEGAL))
                    continue
                queue = self._queue(message.topic, message.queue_id)
            if queue not in before:
                before[queue] = queue.next_offset
            with_unit = message.sys_flag & TRANSACTION_MASK not in NO_UNIT
            queue_offset = first_queue_offset = queue.next_offset if with_unit else 0
            offsets: list[int] = []
            for flag, item_body, item_properties, tail in items:
                size = fixed + len(item_body) + len(tail)
                if position + size + BLANK_SIZE > file_end:
                    parts.append(encode_blank(file_end - position))
                    segments.append((segment, parts))
                    parts = []
                    segment = position = file_end
                    file_end += file_size
                parts += (
                    encode_preamble(
                        message,
                        magic,
                        item_body,
                        len(topic) + len(tail),
                        flag,
                        queue_offset,
                        position,
                        now,
                    ),
                    item_body,
                    topic,
                    tail,
                )
                offsets.append(position)
                end = position + size
                if with_unit:
                    code = (
                        tags_code(item_properties)
                        if message.topic != SCHEDULE_TOPIC
                        else delivery_time(item_properties, now, self._delays_ms)
                    )
                    unit = pack_unit(position, size, code)
                    units.append((end, queue, queue_offset, unit))
                    queue_offset += 1
                else:
                    units.append((end, None, 0, b""))
                position = end
            if with_unit:
                queue.next_offset = queue_offset
            first = offsets[0]
            results.append(
                PutResult(
                    ok,
                    first,
                    first_queue_offset,
                    position - first,
                    now,
                    tuple(offsets) if message.batch else (),
                )
            )
        if not units:
            return results
        segments.append((segment, parts))
        try:
            for at, pieces in segments:
                file = self._log.file_for_write(at)
                file.write(at - file.base, b"".join(pieces))
        except OSError as error:
            log.error("appending %d messages at %d failed: %s", len(units), self.max_offset, error)
            for queue, offset in before.items():
                queue.next_offset = offset
            self._take_back(position)
            failed = PutResult(PutStatus.CREATE_MAPPED_FILE_FAILED)
            return [failed if result.status is ok else result for result in results]
        self.max_offset = position
        self._last_timestamp = now
        if self._pending_whole:
            self._pending += units
            if len(self._pending) > _MAX_PENDING:
                self._forget_pending()
        self.dispatch()
        return results

    def _take_back(self, end: int) -> None:
        """Overwrite with zeros what a failed append left behind the end of the log, so that no recovery takes
        it for messages."""
        try:
            self._log.cut(self.max_offset, end)
        except OSError as error:
            self._failure = f"cannot clean up after a failed append: {error}"
            log.critical("%s; no more messages are accepted", self._failure)

    def append_raw(self, offset: int, data: Buffer) -> None:
        """Append bytes of another replica's log, which need not begin or end at records.

        `offset` must be where this log ends; an empty log may begin at the beginning of any file. Call
        `dispatch` afterwards. Raises `OffsetGap`, `OSError`; on an `OSError` whole pieces may have been kept:
        `max_offset` tells.
        """
        size = self._log.file_size
        if offset != self.max_offset:
            if self._log.files or self.max_offset or offset % size:
                raise OffsetGap(f"bytes for offset {offset}, the log ends at {self.max_offset}")
            self.max_offset = self.flushed_offset = self._dispatched = self._index_position = offset
        view = memoryview(data)
        self._forget_pending()
        self._offsets_known = False
        self.lost_bytes = 0  # what this log has to hold is the other replica's to say from here on
        while view:
            position = self.max_offset % size
            piece = view[: size - position]
            self._log.file_for_write(self.max_offset).write(position, piece)
            self.max_offset += len(piece)
            view = view[len(piece) :]

    # ------------------------------------------------------------------------------------------- dispatch

    def dispatch(self) -> int:
        """Build consume queues from the log, up to the confirm offset; returns where they now end in the log.

        On a full disk they stay behind; the next call goes on.
        """
        limit = self.confirm_offset
        while self._dispatched < limit:
            before = self._dispatched
            # A long way is gone in steps, so that the units of one step fit into memory.
            step = min(limit, before + _DISPATCH_STEP)
            if not self._dispatch_to(step):
                break
            if self._dispatched == before and (step == limit or not self._dispatch_to(limit)):
                break
            if self._dispatched == before:
                break
        return self._dispatched

    def _dispatch_to(self, limit: int) -> bool:
        touched: dict[ConsumeQueue, None] = {}
        if self._pending_whole:
            position = self._take_pending(limit, touched)
        else:
            position = self._collect_units(limit, touched)
        try:
            for queue in touched:
                queue.write_pending()
        except OSError as error:
            log.error("consume queues cannot be written, they end at %d: %s", self._dispatched, error)
            for queue in touched:
                queue.pending = []
            self._forget_pending()
            return False
        self._dispatched = position
        self._grown.update(touched)
        if position == self.max_offset and not self._pending_whole:
            self._pending_whole = True
        return True

    def take_grown(self) -> list[tuple[QueueKey, int]]:
        """Queues that `dispatch` has lengthened since the last call, with their max offset: who waits for
        messages may have some now. The broker's appender calls it after each dispatch."""
        grown = [((queue.topic, queue.queue_id), queue.max_offset) for queue in self._grown]
        self._grown.clear()
        return grown

    def _take_pending(self, limit: int, touched: dict[ConsumeQueue, None]) -> int:
        pending = self._pending
        position = self._dispatched
        for end, queue, queue_offset, unit in pending:
            if end > limit:
                break
            position = end
            if queue is not None:
                units = queue.pending
                if not units:
                    queue.pending_from = queue_offset
                    touched[queue] = None
                units.append(unit)
        if position == self.max_offset:
            pending.clear()
        else:
            while pending and pending[0][0] <= position:
                pending.popleft()
        return position

    def _collect_units(self, limit: int, touched: dict[ConsumeQueue, None]) -> int:
        position, stored = self._dispatched, 0
        queues, pack_unit = self._queues, UNIT.pack
        while (file := self._log.file_at(position)) is not None and position < limit:
            data, base = file.map, file.base
            records = read_records(data, position - base, min(limit - base, file.size))
            for physical, size, topic, queue_id, queue_offset, sys_flag, stored_at, properties in records:
                position += size
                if sys_flag & TRANSACTION_MASK in NO_UNIT:
                    continue
                queue = queues.get((topic, queue_id)) or self._queue_of(topic, queue_id, physical)
                if queue is None:
                    continue
                units = queue.pending
                if not units or queue_offset != queue.pending_from + len(units):
                    if units:
                        queue.write_pending()
                    if not queue.takes(queue_offset):
                        self._has_no_queue(topic, physical, f"has no place for queue offset {queue_offset}")
                        continue
                    units = queue.pending
                    queue.pending_from = queue_offset
                    touched[queue] = None
                code = (
                    tags_code(properties)
                    if topic != SCHEDULE_TOPIC
                    else delivery_time(properties, stored_at, self._delays_ms)
                )
                units.append(pack_unit(physical, size, code))
                stored = stored_at
            filler = blank_size(data, position - base, min(limit - base, file.size))
            if not filler or position + filler > limit:
                break
            position = base + file.size
        self._last_timestamp = max(self._last_timestamp, stored)
        return position

    def _forget_pending(self) -> None:
        self._pending.clear()
        self._pending_whole = False

    def _learn_queue_offsets(self) -> None:
        """Make each queue's `next_offset` count the messages that consume queues do not hold yet. A torn
        record at the end must have been cut before."""
        for queue in self._queues.values():
            queue.next_offset = queue.max_offset
        position = self._dispatched
        while (file := self._log.file_at(position)) is not None and position < self.max_offset:
            for record in read_records(
                file.map, position - file.base, min(file.size, self.max_offset - file.base)
            ):
                position += record.size
                if record.has_unit:
                    found = self._queue_of(record.topic, record.queue_id, record.physical_offset)
                    if found is not None and found.takes(record.queue_offset):
                        found.next_offset = max(found.next_offset, record.queue_offset + 1)
            if not blank_size(file.map, position - file.base, file.size):
                break
            position = file.base + file.size
        if position < self.max_offset:
            if position - position % self._log.file_size + self._log.file_size < self.max_offset:
                # A record that came only in part ends the log; this one has whole files behind it.
                raise StoreError(
                    f"the log cannot be read from {position} on, but goes on to {self.max_offset}: it is "
                    "damaged, or mappedFileSizeCommitLog differs between the replicas. Nothing was cut"
                )
            log.warning("the log's last %d bytes are no whole record: cut", self.max_offset - position)
            self.truncate(position)
        self._offsets_known = True

    def cut_torn_tail(self) -> int:
        """On becoming master: cut a record that has come only in part. Returns where the log ends now."""
        self._learn_queue_offsets()
        return self.max_offset

    def build_index(self, max_records: int = 10_000) -> bool:
        """Add up to `max_records` dispatched records to the index; True if there are more to go on with."""
        if self._index is None:
            return False
        position = begin = max(self._index_position, self.min_offset)
        keys: list[Key] = []
        seen = 0
        while position < self._dispatched and seen < max_records:
            file = self._log.file_at(position)
            if file is None:
                break
            for record in read_records(
                file.map, position - file.base, min(file.size, self._dispatched - file.base)
            ):
                keys += [(key, record.physical_offset, record.store_timestamp) for key in keys_of(record)]
                position += record.size
                seen += 1
                if seen >= max_records:
                    break
            else:
                if not blank_size(file.map, position - file.base, file.size):
                    break
                position = file.base + file.size
        try:
            self._index.add(keys, self._clock.now_ms())
        except OSError as error:
            log.error("the index cannot be written, it ends at %d: %s", self._index_position, error)
            self._index.truncate(self._index_position)
            return False
        self._index_position = position
        # Stuck at a record that cannot be read: asking again at once would go on for ever.
        return begin < position < self._dispatched

    # ----------------------------------------------------------------------------------------------- read

    def get(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        max_count: int,
        max_bytes: int = _MAX_PULL_BYTES,
        accept: Callable[[int], bool] | None = None,
    ) -> GetResult:
        """Messages of a queue from `queue_offset` on, at most `max_count` and about `max_bytes`, but one at
        least. `accept` is asked for each message's tags code. Only confirmed messages are given out.
        """
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            return GetResult(GetStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0)
        low, high = queue.min_offset, queue.max_offset
        if high == 0:
            return GetResult(GetStatus.NO_MESSAGE_IN_QUEUE, 0, low, high)
        if queue_offset < low:
            return GetResult(GetStatus.OFFSET_TOO_SMALL, low, low, high)
        if queue_offset >= high:
            over = GetStatus.OFFSET_OVERFLOW_ONE if queue_offset == high else GetStatus.OFFSET_OVERFLOW_BADLY
            return GetResult(over, high, low, high)
        max_count = max(1, max_count)
        look_at = max_count
        if accept is not None:
            look_at = max(self.config.max_filter_message_size // UNIT.size, max_count)
        data = queue.read(queue_offset, min(look_at, high - queue_offset))
        if not data:
            size = self.config.consume_queue_file_size // UNIT.size
            gap = GetResult(GetStatus.OFFSET_FOUND_NULL, queue_offset - queue_offset % size + size, low, high)
            return gap
        return self._collect(data, queue_offset, low, high, max_count, max_bytes, accept)

    def _collect(
        self,
        units: bytes,
        next_offset: int,
        low: int,
        high: int,
        max_count: int,
        max_bytes: int,
        accept: Callable[[int], bool] | None,
    ) -> GetResult:
        config = self.config
        result = GetResult(GetStatus.NO_MATCHED_MESSAGE, next_offset, low, high)
        near = self.max_offset - self._memory * config.access_message_in_memory_max_ratio // 100
        runs: list[tuple[MappedFile, int, int]] = []
        total = count = 0
        begin = end = -1
        file = None
        for physical_offset, size, code in UNIT.iter_unpack(units):
            if physical_offset >= near:
                most, most_bytes = (
                    config.max_transfer_count_on_message_in_memory,
                    config.max_transfer_bytes_on_message_in_memory,
                )
            else:
                most, most_bytes = (
                    config.max_transfer_count_on_message_in_disk,
                    config.max_transfer_bytes_on_message_in_disk,
                )
            if count and (count >= max_count or count >= most or total + size > min(max_bytes, most_bytes)):
                break
            next_offset += 1
            if accept is not None and not accept(code):
                continue
            if physical_offset == end and file is not None and end + size <= file.base + file.size:
                end += size
            else:
                found = self._log.file_at(physical_offset) if size != FILLER_SIZE else None
                if found is None or physical_offset + size > self.max_offset:
                    if not count:
                        result.status = GetStatus.MESSAGE_WAS_REMOVING
                    continue
                if file is not None:
                    runs.append((file, begin - file.base, end - begin))
                file, begin, end = found, physical_offset, physical_offset + size
            total += size
            count += 1
        if file is not None:
            runs.append((file, begin - file.base, end - begin))
            result.buffers = [memoryview(file.map)[at : at + length] for file, at, length in runs]
            result.status = GetStatus.FOUND
            result.suggest_slave = end < near
            first, at, _ = runs[0]
            if first.base + at < max(near, self._opened_at):
                result.fetch = partial(_fetch, runs)
        result.next_offset, result.count, result.size = next_offset, count, total
        return result

    def read(self, offset: int, max_bytes: int) -> memoryview:
        """Up to `max_bytes` of the raw log from `offset` on, at most to the end of its file: for replication.
        Empty at the end of the log. Raises `StoreError` for an offset that is not, or no longer, in it."""
        if offset == self.max_offset:
            return memoryview(b"")
        file = self._log.file_at(offset)
        if file is None or offset > self.max_offset:
            raise StoreError(f"offset {offset} is not in the log, {self.min_offset} to {self.max_offset}")
        begin = offset - file.base
        end = min(file.size, self.max_offset - file.base, begin + max_bytes)
        return memoryview(file.map)[begin:end]

    def fetching(self, offset: int, size: int) -> Callable[[], None]:
        """A job for another thread: when it is done, `read` of these bytes, or of those of them that are in
        the log, finds them in memory. It raises `OSError` when the disk fails or a file is deleted meanwhile.
        """
        end = min(offset + size, self.max_offset)
        runs: list[tuple[MappedFile, int, int]] = []
        while offset < end and (file := self._log.file_at(offset)) is not None:
            length = min(end, file.base + file.size) - offset
            runs.append((file, offset - file.base, length))
            offset += length
        return partial(_fetch, runs)

    def message_at(self, physical_offset: int) -> memoryview | None:
        """The record at a commit log offset; None if there is none, or it is not confirmed."""
        file = self._log.file_at(physical_offset)
        if file is None or physical_offset >= self.confirm_offset:
            return None
        begin = physical_offset - file.base
        for record in read_records(file.map, begin, min(file.size, self.confirm_offset - file.base)):
            if record.physical_offset == physical_offset:
                return memoryview(file.map)[begin : begin + record.size]
            break
        return None

    def queue_bounds(self, topic: str, queue_id: int) -> QueueBounds:
        """First offset and the offset after the last; 0 and 0 for a queue that nothing was put into."""
        queue = self._queues.get((topic, queue_id))
        return QueueBounds(queue.min_offset, queue.max_offset) if queue else QueueBounds(0, 0)

    def queue_store_time(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """Store time in ms of one message, -1 if it is not there."""
        queue = self._queues.get((topic, queue_id))
        if queue is None or not queue.min_offset <= queue_offset < queue.max_offset:
            return -1
        unit = queue.unit(queue_offset)
        return self._store_time(unit[0]) if unit else -1

    def earliest_message_time(self, topic: str | None = None, queue_id: int = 0) -> int:
        """Store time in ms of a queue's first message, or, without a topic, of the log's; -1 for none."""
        if topic is not None:
            return self.queue_store_time(topic, queue_id, self.queue_bounds(topic, queue_id).min_offset)
        return self._store_time(self.min_offset) if self.max_offset > self.min_offset else -1

    def _store_time(self, physical_offset: int) -> int:
        file = self._log.file_at(physical_offset)
        if file is None or physical_offset >= self.max_offset:
            return -1
        at = physical_offset - file.base
        size, magic = _SIZE_MAGIC.unpack_from(file.map, at)
        return read_record(file.map, at, size, magic).store_timestamp

    def offset_by_time(
        self, topic: str, queue_id: int, timestamp_ms: int, boundary: Boundary = Boundary.LOWER
    ) -> int:
        """Queue offset for a store time; 0 for a queue without messages.

        LOWER: of the first message stored at or after it, else the queue's max offset. UPPER: of the last one
        stored at or before it, else the queue's min offset.
        """
        queue = self._queues.get((topic, queue_id))
        if queue is None or queue.min_offset >= queue.max_offset:
            return queue.max_offset if queue else 0
        low, high = queue.min_offset, queue.max_offset
        while low < high:
            middle = (low + high) // 2
            unit = queue.unit(middle)
            stored = self._store_time(unit[0]) if unit else -1
            if stored < timestamp_ms or (boundary is Boundary.UPPER and stored == timestamp_ms):
                low = middle + 1
            else:
                high = middle
        return low if boundary is Boundary.LOWER else max(low - 1, queue.min_offset)

    def query_by_key(
        self, topic: str, key: str, max_count: int, begin_ms: int = 0, end_ms: int = 1 << 62
    ) -> QueryResult:
        """Records of `topic` with `key` among their keys, or as unique id, stored between the two times."""
        if self._index is None:
            return QueryResult()
        self.build_index(50_000)
        wanted = f"{topic}#{key}"
        limit = min(max_count, self.config.max_msgs_num_batch)
        result = QueryResult(
            index_timestamp=self._index.end_timestamp, index_offset=max(0, self._index.end_offset)
        )
        for offset in self._index.find(topic, key, limit * 4, begin_ms, end_ms):
            view = self.message_at(offset)
            if view is None or len(result.records) >= limit:
                continue
            record = read_record(view, 0, *_SIZE_MAGIC.unpack_from(view))
            if wanted in keys_of(record) and begin_ms <= record.store_timestamp <= end_ms:
                result.records.append(view)
        return result

    def queues(self) -> list[tuple[str, int]]:
        """All (topic, queue id) that have a consume queue."""
        return list(self._queues)

    # ----------------------------------------------------------------------------------------- durability

    def flush(self) -> int:
        """Bring the commit log to disk; returns the durable offset. Blocking, for the executor.

        If the disk fails, so does every later call, and no message is accepted any more: after a failed fsync
        nobody knows what is on disk.
        """
        with self._flush_lock:
            if self._failure is not None:
                raise OSError(self._failure)
            truncations, target, begin = self._truncations, self.max_offset, self.flushed_offset
            if target <= begin:
                return begin
            files = [f for f in list(self._log.files) if f.base < target and f.base + f.size > begin]
            try:
                for file in files:
                    sync_path(file.path)
                if files and files[-1].base != self._synced_files:
                    sync_path(self._log.directory)
                    self._synced_files = files[-1].base
            except OSError as error:
                self._failure = f"fsync of the commit log failed: {error}"
                raise
            with self._offsets_lock:
                if truncations == self._truncations:
                    self.flushed_offset = target
                return self.flushed_offset

    def flush_queues(self) -> int:
        """Bring commit log, consume queues and index to disk and note it in the checkpoint. Blocking, for the
        executor, every `flushIntervalConsumeQueue`; makes recovery short. Returns the durable offset."""
        truncations, safe, timestamp = self._truncations, self._dispatched, self._last_timestamp
        flushed = self.flush()
        for _ in range(len(self._dirty)):
            queue, path = self._dirty.popleft()
            if queue is not None:
                queue.is_dirty = False
            sync_path(Path(path))
        index_time = self._index.flush() if self._index is not None else 0
        with self._offsets_lock:
            checkpoint = self._checkpoint
            # A loss is remembered, also by the next start, until the log is as long again.
            if truncations == self._truncations and (
                not self.lost_bytes or flushed >= checkpoint.safe_offset
            ):
                self.lost_bytes = 0
                checkpoint.safe_offset = min(safe, flushed)
                checkpoint.physic_timestamp = checkpoint.logics_timestamp = timestamp
                checkpoint.index_timestamp = index_time
                checkpoint.confirm_offset = self.confirm_offset
                checkpoint.save()
        return flushed

    def truncate(self, offset: int) -> None:
        """Cut the log at `offset` exactly, and everything that points behind it. Durable on return.

        Raises `StoreError` below `min_offset`, `OSError`.
        """
        if offset >= self.max_offset:
            return
        if offset < self.min_offset:
            raise StoreError(f"cannot cut at {offset}, the log begins at {self.min_offset}")
        log.info("cutting the log at %d, it ended at %d", offset, self.max_offset)
        with self._offsets_lock:
            self._truncations += 1
            # First: no recovery may trust an offset behind the cut, whatever else of this reaches the disk.
            self._checkpoint.safe_offset = -1
            self.lost_bytes = 0
            self._checkpoint.confirm_offset = min(self._checkpoint.confirm_offset, offset)
            self._checkpoint.save()
            self._confirm = min(self._confirm, offset)
            self._forget_pending()
            self._offsets_known = False
            for queue in self._queues.values():
                if queue.end_physical > offset:
                    queue.truncate(offset)
            if self._index is not None:
                self._index.truncate(offset)
                self._index_position = self._record_after(self._index.end_offset)
            self._log.cut(offset, self.max_offset)
            last = self._log.file_at(offset)
            if last is not None:
                sync_path(last.path)
            sync_path(self._log.directory)
            self.max_offset = offset
            self.flushed_offset = min(self.flushed_offset, offset)
            if self._dispatched > offset:
                self._dispatched = max((queue.end_physical for queue in self._queues.values()), default=0)
                self._dispatched = max(self._dispatched, self.min_offset)

    def discard(self) -> None:
        """Throw everything away: this log shares nothing with the one it is to become a copy of. An empty log
        may begin at any file (`append_raw`). Durable on return; raises `OSError`."""
        self.truncate(self.min_offset)
        with self._offsets_lock:
            self._truncations += 1
            for path in self._log.drop_first(len(self._log.files)):
                path.unlink(missing_ok=True)
            sync_path(self._log.directory)
            for queue in self._queues.values():
                queue.remove()
            self._queues.clear()
            if self._index is not None:
                self._index.truncate(0)
            self._forget_pending()
            self._offsets_known = False
            self._confirm = self._dispatched = self._index_position = 0
            self.max_offset = self.flushed_offset = 0

    # ---------------------------------------------------------------------------------------------- expiry

    def check_disk(self) -> DiskState:
        """Look at the disk's usage; above the warning level `put` refuses until it has fallen again."""
        state = judge(self._disk_usage(self.config.commit_log_path), self.config)
        if state.writable != self._disk.writable:
            log.warning("disk usage: messages are %s", "accepted again" if state.writable else "refused")
        self._disk = state
        return state

    def delete_expired(self) -> list[Path]:
        """Detach files that are past their time, or must go because the disk is nearly full.

        Returns their paths for the caller to unlink, in order, in the executor. Views of them stay valid.
        The file in use is never among them, nor anything not yet dispatched.
        """
        state, now = self.check_disk(), self._clock.now_ms()
        if not state.clean and not is_delete_hour(self.config, now):
            return []
        files = [file for file in self._log.files if file.base + file.size <= self._dispatched]
        if len(files) < len(self._log.files):
            files = self._log.files[: len(files) + 1]
        count = expired_count(
            [file.modified_ms() for file in files],
            self.config,
            now,
            forcibly=state.forcibly,
            limit=self.config.delete_file_batch_max,
        )
        if not count:
            return []
        paths = self._log.drop_first(count)
        log.info("%d commit log files expired, the log now begins at %d", count, self.min_offset)
        self._index_position = max(self._index_position, self.min_offset)
        paths += self._set_queue_minima()
        if self._index is not None:
            paths += self._index.drop_before(self.min_offset)
        return paths

    def _set_queue_minima(self) -> list[Path]:
        paths = []
        for queue in self._queues.values():
            paths += queue.set_min_physical(self.min_offset)
        return paths

    def delete_topic(self, topic: str) -> None:
        """Remove the consume queues of `topic`. Its messages go with the commit log files they are in."""
        for key in [key for key in self._queues if key[0] == topic]:
            self._queues.pop(key).remove()
        if no_queue_reason(topic, 0) is not None:
            return
        directory = self.config.consume_queue_path / topic
        if directory.is_dir() and not any(directory.iterdir()):
            directory.rmdir()

    # --------------------------------------------------------------------------------------------- closing

    def close(self) -> None:
        """Flush everything and mark the stop as clean, unless the disk fails. Further calls do nothing."""
        if self._closed:
            return
        self._closed = True
        try:
            # RocketMQ would not index what it finds undone after a clean stop; we would, so not at any price.
            for _ in range(20):
                if not self.build_index():
                    break
            self.flush_queues()
            self._abort_path.unlink(missing_ok=True)
        finally:
            self._release()

    def abandon(self) -> None:
        """Let go of all files without a flush and without marking the stop as clean: what a crash leaves, for
        tests and the simulator."""
        self._closed = True
        self._release()

    def _release(self) -> None:
        self._log.close()
        self._open_files.close()
        if self._index is not None:
            self._index.close()
        self._lock.release()

    def _queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            queue = ConsumeQueue(
                self.config.consume_queue_path / topic / str(queue_id),
                topic,
                queue_id,
                self.config.consume_queue_file_size,
                self._open_files,
                self._dirty,
            )
            self._queues[topic, queue_id] = queue
        return queue

    def _queue_of(self, topic: str, queue_id: int, physical_offset: int) -> ConsumeQueue | None:
        """The queue of a record of the log, which may be another broker's; None if it can have none."""
        reason = no_queue_reason(topic, queue_id)
        if reason is None:
            return self._queue(topic, queue_id)
        self._has_no_queue(topic, physical_offset, reason)
        return None

    def _has_no_queue(self, topic: str, physical_offset: int, reason: str) -> None:
        self._without_queue += 1
        if self._without_queue.bit_count() == 1:  # the 1st, 2nd, 4th, ...: many of them make few lines
            log.error(
                "the message at %d of the log can be read by nobody: its topic %.300r %s (%d such so far)",
                physical_offset,
                topic,
                reason,
                self._without_queue,
            )


_Item = tuple[int, Buffer, bytes, bytes]
"""Flag, body, properties, properties behind their length."""


def _fetch(runs: Sequence[tuple[MappedFile, int, int]]) -> None:
    for file, position, length in runs:
        file.fetch(position, length)


def _single_item(message: StoredMessage) -> tuple[_Item, ...]:
    properties = message.properties
    if len(properties) > MAX_PROPERTIES_BYTES:
        return ()
    return ((message.flag, message.body, properties, _SHORT.pack(len(properties)) + properties),)


def _fit(items: Sequence[_Item], room: int) -> bool:
    return all(len(body) + len(tail) <= room for _, body, _, tail in items)


def _batch_items(message: StoredMessage) -> Sequence[_Item]:
    """The messages of a wire batch."""
    data = bytes(message.body)
    return [
        (
            flag,
            data[body:tail],
            data[tail + 2 : end],
            data[tail:end] if data[end - 1] else _ended(data[tail:end]),
        )
        for flag, body, tail, end in scan_batch(data)
    ]


def _ended(tail: bytes) -> bytes:
    """Properties behind their length, as what does not end with a zero: a record that does and is the log's
    last looks after a crash as if its end had been lost (`check_record`), and is cut off. RocketMQ's clients
    end them with the separator that is added here, and so do single sends."""
    properties = tail[2:]
    if not properties or len(properties) >= MAX_PROPERTIES_BYTES:
        return tail[:-1] + b"\2" if properties else tail
    return _SHORT.pack(len(properties) + 1) + properties + b"\2"
