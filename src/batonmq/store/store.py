"""The message store: commit log, consume queues, index and checkpoint of one broker, as one object.

Lives on the event loop's thread; only `flush` and `flush_queues` may run in another one. The files are
RocketMQ's, byte by byte. What is appended is written with one ``pwrite`` a turn, and one for each large
batch; consume queues follow at once, or, when messages must be confirmed by replicas first, as far as the
confirm offset; the index follows when asked.

Delay levels, transactions and the timer wheel belong above: they put and get messages of system topics, and
say in a `StorePolicy` what they want of the store besides.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from batonmq.common.clock import Clock
from batonmq.protocol.buffers import Buffer
from batonmq.protocol.message.record import StoredMessage
from batonmq.store.append import Turn, encode_turn
from batonmq.store.checkpoint import Checkpoint
from batonmq.store.commitlog import CommitLog
from batonmq.store.config import StoreConfig
from batonmq.store.disk import DiskState, used_ratio
from batonmq.store.dispatch import QueueDispatcher
from batonmq.store.errors import OffsetGap, StoreError
from batonmq.store.expiry import Expiry
from batonmq.store.indexer import Indexer
from batonmq.store.light import LightQueues
from batonmq.store.lock import StoreLock
from batonmq.store.mapped import FILES_AGAIN_S, FILES_PATIENCE_S, NOT_OPENED
from batonmq.store.policy import MessageFilter, StorePolicy
from batonmq.store.queues import ConsumeQueues, QueueKey
from batonmq.store.reader import Reader
from batonmq.store.recovery import mark_in_use, recover
from batonmq.store.results import (
    Boundary,
    GetResult,
    GetStatus,
    PutResult,
    PutStatus,
    QueryResult,
    QueueBounds,
)

__all__ = ["Boundary", "GetResult", "GetStatus", "MessageStore", "PutResult", "PutStatus", "QueueBounds"]

log = logging.getLogger(__name__)

_MAX_PULL_BYTES = 128 << 20
_LONGEST_TAIL = 8 << 20
"""See `MessageStore.last_record_begin`."""
_MAX_AHEAD_MS = 600_000
"""Store times do not go back at a restart either, unless a clock was further ahead of this one: delayed
messages are late by as much, and a restart ends that."""

_NO_FEATURES = StorePolicy()


class MessageStore:
    """See the module. Offsets are commit log ("physical") or queue offsets, never mixed."""

    def __init__(
        self,
        config: StoreConfig,
        clock: Clock,
        lock: StoreLock,
        *,
        wait_for_confirm: bool,
        policy: StorePolicy,
        disk_usage: Callable[[Path], float],
    ) -> None:
        """Use `open`."""
        self.config = config
        """May be replaced; keys that say how files are named or how large they are must stay."""
        self._clock = clock
        self._lock = lock
        self._closed = False
        self._flushing_queues = threading.Lock()
        """`close` may come while a thread is still at it."""
        self._offsets_known = False
        """Each queue's `next_offset` counts everything in the log."""
        self._cut_at = -1
        """See `take_cut`; -1 for none."""
        self._whole: deque[tuple[int, int]] = deque()
        """See `keep_whole`; in order."""
        self._abort_path = config.root / "abort"
        clean = not self._abort_path.exists()
        self._checkpoint = checkpoint = Checkpoint.load(config.root / "checkpoint")
        self._log = CommitLog(
            config.commit_log_path, config.mapped_file_size_commit_log, wait_for_confirm=wait_for_confirm
        )
        self._queues = ConsumeQueues(
            config.consume_queue_path, config.consume_queue_file_size, policy.unit_codes
        )
        crc = config.check_crc_on_recover
        clean = recover(self._log, self._queues, checkpoint, self._abort_path, clean=clean, crc=crc)
        newest = self._log.store_time(self._queues.last_record_begin())
        if newest <= clock.now_ms() + _MAX_AHEAD_MS:
            self._log.last_timestamp = max(0, newest)
        self._light = LightQueues(self._queues, config.light_queue_limit) if config.light_queues else None
        self._dispatcher = QueueDispatcher(self._log, self._queues, policy.observers, self._light)
        self._indexer: Indexer | None = None
        if config.message_index_enable:
            safe_until = None if clean else checkpoint.index_timestamp
            self._indexer = Indexer(config, self._log, clock, safe_until=safe_until)
        self.dispatch()
        self._reader = Reader(self._log, self._queues)
        self._expiry = Expiry(clock, self._log.files, disk_usage)
        mark_in_use(self._abort_path)

    @classmethod
    def open(
        cls,
        config: StoreConfig,
        clock: Clock,
        *,
        wait_for_confirm: bool,
        policy: StorePolicy = _NO_FEATURES,
        disk_usage: Callable[[Path], float] = used_ratio,
    ) -> MessageStore:
        """Load and recover the store in `config.root`, which is created if it is missing.

        `wait_for_confirm`: messages reach consumers only below `confirm_offset` (controller mode).
        `policy`: what features above the store want of it.
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
                policy=policy,
                disk_usage=disk_usage,
            )
        except BaseException:
            lock.release()
            raise

    # -------------------------------------------------------------------------------------------- offsets

    @property
    def min_offset(self) -> int:
        """First commit log offset that is still there."""
        return self._log.min_offset

    @property
    def max_offset(self) -> int:
        """Commit log offset after the last byte appended."""
        return self._log.max_offset

    @property
    def flushed_offset(self) -> int:
        """Everything before is on disk."""
        return self._log.flushed_offset

    @property
    def dispatched_offset(self) -> int:
        """Consume queues hold every message before this commit log offset."""
        return self._dispatcher.offset

    @property
    def confirm_offset(self) -> int:
        """Messages before it are safe on all replicas that count; the end without `wait_for_confirm`."""
        return self._log.confirm_offset

    @confirm_offset.setter
    def confirm_offset(self, offset: int) -> None:
        self._log.confirm_offset = offset

    def keep_whole(self, begin: int, end: int) -> None:
        """What a master appended between these commit log offsets is confirmed as one (`confirmable`)."""
        self._whole.append((begin, end))

    def confirmable(self, offset: int) -> int:
        """Up to where a master confirms its log while all replicas have it up to `offset`: not within what is
        kept whole."""
        whole = self._whole
        while whole and whole[0][1] <= offset:
            whole.popleft()
        return min(offset, whole[0][0]) if whole else offset

    def last_record_begin(self) -> int:
        """Where the last message that consume queues hold begins in the log; later if that is more than two
        of the largest messages before the end, and never before the log's begin."""
        commit_log = self._log
        most = max(_LONGEST_TAIL, 2 * self.config.max_message_size)
        return max(self._queues.last_record_begin(), commit_log.min_offset, commit_log.max_offset - most)

    @property
    def last_timestamp(self) -> int:
        """Store time in ms of the newest message known. 0 if there is none, or none was seen since the store
        was opened and those before are from a clock that was far ahead."""
        return self._log.last_timestamp

    @property
    def failure(self) -> str | None:
        """Why no message is ever accepted again: the disk failed, and what is on it is unknown."""
        return self._log.failure

    @property
    def lost_bytes(self) -> int:
        """What had been on disk and was no longer there when the store was opened: nothing a crash does."""
        return self._log.lost_bytes

    # ---------------------------------------------------------------------------------------------- write

    def put(self, batch: Sequence[StoredMessage]) -> list[PutResult]:
        """Append the messages of one loop turn; one result each, in order.

        Messages that cannot be stored are refused one by one. If the disk refuses (CREATE_MAPPED_FILE_FAILED)
        none is stored. An accepted message is in the page cache, not on disk: see `flush`.
        """
        commit_log, config = self._log, self.config
        if commit_log.failure is not None or self._closed or not self._expiry.disk.writable:
            return [PutResult(PutStatus.SERVICE_NOT_AVAILABLE)] * len(batch)
        if not self._offsets_known:
            self._learn_queue_offsets()
        now = max(self._clock.now_ms(), commit_log.last_timestamp)
        turn: Turn | None = None
        try:
            turn = encode_turn(
                batch,
                self._queues,
                commit_log.max_offset,
                now,
                commit_log.files.file_size,
                config.max_message_size,
                self._light,
                commit_log.write,
            )
            if not turn.units:
                return turn.results
            commit_log.append(turn.segments, turn.end, now)
        except OSError as error:
            count = len(batch)
            log.error("appending %d messages at %d failed: %s", count, commit_log.max_offset, error)
            commit_log.take_back(error)
            return [PutResult(PutStatus.CREATE_MAPPED_FILE_FAILED)] * count if turn is None else turn.fail()
        except BaseException:
            commit_log.take_back(None)
            if turn is not None:
                turn.fail()
            raise
        self._dispatcher.add(turn.units)
        self.dispatch()
        return turn.results

    def light_refusal(self, topic: str, properties: bytes) -> PutStatus | None:
        """Why `put` would refuse a message of `topic` for the light queues that its properties name."""
        return None if self._light is None else self._light.refusal(topic, properties)

    def append_raw(self, offset: int, data: Buffer) -> None:
        """Append bytes of another replica's log, which need not begin or end at records.

        `offset` must be where this log ends; an empty log may begin at the beginning of any file. Call
        `dispatch` afterwards. Raises `OffsetGap`, `OSError`; on an `OSError` whole pieces may have been kept:
        `max_offset` says how far.
        """
        commit_log = self._log
        if offset != commit_log.max_offset:
            files = commit_log.files
            if files.files or commit_log.max_offset or offset % files.file_size:
                raise OffsetGap(f"bytes for offset {offset}, the log ends at {commit_log.max_offset}")
            self._start_at(offset)
        self._dispatcher.forget_pending()
        self._offsets_known = False
        commit_log.lost_bytes = 0  # what this log has to hold is the other replica's to say from here on
        commit_log.append_raw(data)

    def _start_at(self, offset: int) -> None:
        self._log.set_end(offset)
        self._dispatcher.start_at(offset)
        if self._indexer is not None:
            self._indexer.start_at(offset)

    # ------------------------------------------------------------------------------------------- dispatch

    def dispatch(self) -> int:
        """Build consume queues from the log, up to the confirm offset; returns where they now end in the log.

        On a full disk they stay behind; the next call continues.
        """
        return self._dispatcher.dispatch()

    @property
    def recreated_topics(self) -> set[str]:
        """Topics that were deleted and created again, going by the log: consumer offsets of the former topic
        do not hold for its messages. The broker forgets those offsets, then removes the topic from here."""
        return self._dispatcher.recreated_topics

    def take_grown(self) -> list[tuple[QueueKey, int]]:
        """Queues that `dispatch` has lengthened since the last call, with their max offset: readers that
        wait may find messages now. The broker's appender calls it after each dispatch."""
        return self._dispatcher.take_grown()

    def _learn_queue_offsets(self) -> None:
        """Make each queue's `next_offset` count the messages that consume queues do not hold yet. A torn
        record at the end is cut before."""
        position, max_offset = self._dispatcher.count_ahead(), self._log.max_offset
        if position < max_offset:
            file_size = self._log.files.file_size
            if position - position % file_size + file_size < max_offset:
                # A record that came only in part ends the log; this one has whole files behind it.
                raise StoreError(
                    f"the log cannot be read from {position} on, but continues to {max_offset}: it is "
                    "damaged, or mappedFileSizeCommitLog differs between the replicas. Nothing was cut"
                )
            log.warning("the log's last %d bytes are no whole record: cut", max_offset - position)
            self.truncate(position)
        self._offsets_known = True

    @property
    def records_end(self) -> int:
        """Where the last record ended when this store counted them, at `cut_torn_tail` or the first `put`."""
        return self._dispatcher.records_end

    def cut_torn_tail(self) -> int:
        """On becoming master: cut a record that has come only in part. Returns where the log ends now."""
        self._whole.clear()
        self._learn_queue_offsets()
        return self._log.max_offset

    def build_index(self, max_records: int = 10_000) -> bool:
        """Add up to `max_records` dispatched records to the index, fewer at the end of what was read ahead;
        True if there are more to continue with."""
        return self._indexer is not None and self._indexer.build(self._dispatcher.offset, max_records)

    def index_reading(self) -> Callable[[], None] | None:
        """A job for another thread to be done before the next `build_index`, which would wait for the disk
        otherwise; None if there is none. It raises `OSError` when the disk fails or a file is deleted
        meanwhile; then leave `build_index` alone."""
        return None if self._indexer is None else self._indexer.reading(self._dispatcher.offset)

    # ----------------------------------------------------------------------------------------------- read

    def get(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        max_count: int,
        max_bytes: int = _MAX_PULL_BYTES,
        message_filter: MessageFilter | None = None,
    ) -> GetResult:
        """Messages of a queue from `queue_offset` on, at most `max_count` and about `max_bytes`, but one at
        least; `message_filter` says which the reader wants. Only confirmed messages are given out.
        """
        return self._reader.get(
            self.config, topic, queue_id, queue_offset, max_count, max_bytes, message_filter
        )

    def read(self, offset: int, max_bytes: int) -> memoryview:
        """Up to `max_bytes` of the raw log from `offset` on, at most to the end of its file: for replication.
        Empty at the end of the log. Raises `StoreError` for an offset that is not, or no longer, in it."""
        return self._log.read(offset, max_bytes)

    def reading(self, offset: int, size: int) -> Callable[[], bytes]:
        """A job for another thread that returns up to `size` bytes of the raw log as `read` does; it raises
        `OSError` when the disk fails or the file is deleted meanwhile. Raises `StoreError`."""
        return self._log.reading(offset, size)

    def message_at(self, physical_offset: int) -> memoryview | None:
        """The record at a commit log offset; None if there is none, or it is not confirmed."""
        return self._log.message_at(physical_offset)

    def has_record(self, topic: str, queue_id: int, queue_offset: int, physical_offset: int) -> bool:
        """Whether a record of this queue begins at a commit log offset, confirmed or not. Bytes that look
        like one may be a part of a message's body."""
        return self._dispatcher.holds(topic, queue_id, queue_offset, physical_offset)

    def fetching(self, records: Sequence[tuple[int, int]]) -> Callable[[], None] | None:
        """A job for another thread that brings records (physical offset and size) into memory, if some may be
        out of it; see `GetResult.fetch`."""
        return self._reader.fetching(self.config, records)

    def queue_bounds(self, topic: str, queue_id: int) -> QueueBounds:
        """First offset and the offset after the last; 0 and 0 for a queue that nothing was put into."""
        return self._reader.bounds(topic, queue_id)

    def queue_store_time(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """Store time in ms of one message, -1 if it is not there."""
        return self._reader.store_time(topic, queue_id, queue_offset)

    def tags_codes(self, topic: str, queue_id: int, begin: int, count: int) -> list[int]:
        """The tags codes of messages from queue offset `begin`, or the first one, on: up to `count`, perhaps
        fewer."""
        return self._reader.tags_codes(topic, queue_id, begin, count)

    def earliest_message_time(self, topic: str | None = None, queue_id: int = 0) -> int:
        """Store time in ms of a queue's first message, or, without a topic, of the log's; -1 for none."""
        if topic is not None:
            return self.queue_store_time(topic, queue_id, self.queue_bounds(topic, queue_id).min_offset)
        return self._log.store_time(self.min_offset)

    def offset_by_time(
        self, topic: str, queue_id: int, timestamp_ms: int, boundary: Boundary = Boundary.LOWER
    ) -> int:
        """Queue offset for a store time; 0 for a queue without messages.

        LOWER: of the first message stored at or after it, else the queue's max offset. UPPER: of the last one
        stored at or before it, else the queue's min offset.
        """
        return self._reader.offset_by_time(topic, queue_id, timestamp_ms, boundary)

    def query_by_key(
        self, topic: str, key: str, max_count: int, begin_ms: int = 0, end_ms: int = 1 << 62
    ) -> QueryResult:
        """Records of `topic` with `key` among their keys, or as unique id, stored between the two times."""
        if self._indexer is None:
            return QueryResult()
        if self.build_index(50_000):
            self.build_index(50_000)  # the first may end with what was read ahead
        limit = min(max_count, self.config.max_msgs_num_batch)
        return self._indexer.query(topic, key, limit, begin_ms, end_ms)

    def queues(self) -> list[QueueKey]:
        """All (topic, queue id) that have a consume queue."""
        return list(self._queues.by_key)

    # ----------------------------------------------------------------------------------------- durability

    def flush(self) -> int:
        """Bring the commit log to disk; returns the durable offset. Blocking, for the executor.

        If the disk fails, so does every later call, and no further message is accepted: after a failed fsync
        it is unknown what is on disk. With too many open files, `failure` stays None: call it again.
        """
        return self._log.flush()

    def flush_queues(self) -> int:
        """Bring commit log, consume queues and index to disk and note it in the checkpoint. Blocking, for the
        executor, every `flushIntervalConsumeQueue`; makes recovery short. Returns the durable offset."""
        with self._flushing_queues:
            commit_log, checkpoint = self._log, self._checkpoint
            truncations, safe = commit_log.truncations, self._dispatcher.offset
            timestamp = commit_log.last_timestamp
            flushed = self.flush()
            self._queues.sync()
            index_time = self._indexer.flush() if self._indexer is not None else 0
            with commit_log.offsets_lock:
                # A loss is remembered, also by the next start, until the log is as long again.
                if truncations == commit_log.truncations and (
                    not commit_log.lost_bytes or flushed >= checkpoint.safe_offset
                ):
                    commit_log.lost_bytes = 0
                    checkpoint.safe_offset = min(safe, flushed)
                    checkpoint.physic_timestamp = checkpoint.logics_timestamp = timestamp
                    checkpoint.index_timestamp = index_time
                    checkpoint.confirm_offset = commit_log.confirm_offset
                    checkpoint.save()
            return flushed

    def truncate(self, offset: int) -> None:
        """Cut the log at `offset` exactly, and everything that points behind it. Durable on return.

        Raises `StoreError` below `min_offset`, `OSError`.
        """
        commit_log, checkpoint = self._log, self._checkpoint
        if offset >= commit_log.max_offset:
            return
        if offset < commit_log.min_offset:
            raise StoreError(f"cannot cut at {offset}, the log begins at {commit_log.min_offset}")
        log.info("cutting the log at %d, it ended at %d", offset, commit_log.max_offset)
        self._cut_at = offset if self._cut_at < 0 else min(self._cut_at, offset)
        self._whole.clear()
        with commit_log.offsets_lock:
            commit_log.truncations += 1
            # First: no recovery may trust an offset behind the cut, whatever else of this reaches the disk.
            checkpoint.safe_offset = -1
            commit_log.lost_bytes = 0
            checkpoint.confirm_offset = min(checkpoint.confirm_offset, offset)
            checkpoint.save()
            commit_log.confirm_offset = min(commit_log.confirm_offset, offset)
            self._dispatcher.forget_pending()
            self._offsets_known = False
            self._queues.truncate(offset)
            if self._indexer is not None:
                self._indexer.truncate(offset)
            commit_log.cut(offset)
            self._dispatcher.truncated(offset)

    def take_cut(self) -> int | None:
        """The lowest offset at which the log was cut since the last call; None if it was not. For the one
        feature that keeps offsets of the log outside the store (timers)."""
        offset, self._cut_at = self._cut_at, -1
        return None if offset < 0 else offset

    def discard(self) -> None:
        """Delete everything: this log shares nothing with the one it is to become a copy of. An empty log
        may begin at any file (`append_raw`). Durable on return; raises `OSError`."""
        commit_log = self._log
        self.truncate(commit_log.min_offset)
        self._cut_at = 0
        with commit_log.offsets_lock:
            commit_log.truncations += 1
            commit_log.remove_files()
            self._queues.remove_all()
            if self._indexer is not None:
                self._indexer.truncate(0)
            self._offsets_known = False
            commit_log.confirm_offset = 0
            self._start_at(0)

    # ---------------------------------------------------------------------------------------------- expiry

    def check_disk(self) -> DiskState:
        """Look at the disk's usage; above the warning level `put` refuses until it has fallen again."""
        return self._expiry.check_disk(self.config)

    @property
    def doubted_ms(self) -> int:
        """By so much the clock was set ahead while the store is open, less than a day ago: the messages' ages
        may be wrong. Files do not expire by it."""
        return self._expiry.doubted_ms()

    def delete_expired(self) -> list[Path]:
        """Detach files that are past their time, or must go because the disk is nearly full.

        Returns their paths for the caller to unlink, in order, in the executor. Views of them stay valid.
        The file in use is never among them, nor anything not yet dispatched.
        """
        paths = self._expiry.drop_expired(self.config, self._dispatcher.offset)
        if paths:
            paths += self._queues.set_min_physical(self.min_offset)
            if self._indexer is not None:
                paths += self._indexer.drop_before(self.min_offset)
        return paths

    def delete_topic(self, topic: str) -> None:
        """Remove the consume queues of `topic`. Its messages go with the commit log files they are in."""
        self._queues.remove_topic(topic)
        self._dispatcher.forget_pending()  # units for queues that are no more
        self._dispatcher.recreated_topics.discard(topic)

    # --------------------------------------------------------------------------------------------- closing

    def close(self) -> None:
        """Flush everything and mark the stop as clean, unless the disk fails. Further calls do nothing.

        Blocking, for the executor: with too many open files it tries for `FILES_PATIENCE_S`. Raises `OSError`
        if the disk fails, `StoreError` if files still cannot be opened.
        """
        if self._closed:
            return
        self._closed = True
        try:
            # RocketMQ would not index what it finds undone after a clean stop; we would, so not at any price.
            for _ in range(20):
                if not self.build_index():
                    break
            self._flush_patiently()
            self._abort_path.unlink(missing_ok=True)
        finally:
            self._release()

    def _flush_patiently(self) -> None:
        """A last `flush_queues`; too many open files are not a failed disk, and may be fewer soon."""
        deadline = time.monotonic() + FILES_PATIENCE_S
        noted = False
        while True:
            try:
                self.flush_queues()
                return
            except OSError as error:
                if error.errno not in NOT_OPENED:
                    raise
                if time.monotonic() >= deadline:
                    raise StoreError(
                        f"{self.config.root}: the stop is not clean: for {FILES_PATIENCE_S:g} s no files "
                        f"could be opened to bring the last writes to disk ({error.strerror}). No disk "
                        "failed, and all that was acknowledged is in the files; the next start checks them "
                        "as after a crash"
                    ) from error
                if not noted:
                    log.warning("the last flush is tried for %g s more: %s", FILES_PATIENCE_S, error)
                noted = True
            time.sleep(FILES_AGAIN_S)

    def abandon(self) -> None:
        """Let go of all files without a flush and without marking the stop as clean: what a crash leaves, for
        tests and the simulator."""
        self._closed = True
        self._release()

    def _release(self) -> None:
        self._log.files.close()
        self._queues.close()
        if self._indexer is not None:
            self._indexer.close()
        self._lock.release()
