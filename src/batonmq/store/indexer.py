"""The index behind the commit log: built from it, and asked for its messages by key."""

from __future__ import annotations

import logging
import mmap
from collections.abc import Callable
from pathlib import Path

from batonmq.common.clock import Clock
from batonmq.protocol.message.layout import MIN_RECORD_SIZE, SIZE_MAGIC
from batonmq.store import bulk
from batonmq.store.commitlog import CommitLog
from batonmq.store.config import StoreConfig
from batonmq.store.index import Index, Key, Keys, keys_of
from batonmq.store.results import QueryResult
from batonmq.store.scan import blank_size, read_record, read_records

log = logging.getLogger(__name__)

READ_BYTES = 1024 * 1024
"""An index that is further behind the log has it read by another thread, so much at once."""

MAX_KEY = 65_535
"""Characters of topic and key: the properties of a message have at most 32,767 bytes."""


class _Piece:
    """A part of the log that was read from its file: touching a page of the map that is out of memory waits
    for the disk."""

    __slots__ = ("begin", "data", "wanted")

    def __init__(self, begin: int = 0, wanted: int = 0) -> None:
        self.begin = begin
        self.wanted = wanted
        """Bytes; the file may end before."""
        self.data = b""

    def size_at(self, offset: int) -> int:
        """Size of the record, or of the filler, that begins at `offset`; 0 if that is not in here."""
        at = offset - self.begin
        return SIZE_MAGIC.unpack_from(self.data, at)[0] if 0 <= at <= len(self.data) - 8 else 0

    def has(self, offset: int) -> bool:
        """Whether all of the record that begins at `offset` is in here."""
        return 0 < self.size_at(offset) <= self.begin + len(self.data) - offset


class Indexer:
    """The index of one store, and the commit log offset from which on it is to be continued."""

    __slots__ = ("_clock", "_index", "_log", "_most", "_piece", "_position", "_stuck", "_unreadable")

    def __init__(self, config: StoreConfig, log: CommitLog, clock: Clock, *, safe_until: int | None) -> None:
        """Open the index files and forget what the log no longer has. `safe_until`: see `Index`."""
        self._index = Index(
            config.index_path, config.max_hash_slot_num, config.max_index_num, safe_until=safe_until
        )
        self._log = log
        self._clock = clock
        self._position = 0
        """Records before it are in the index."""
        self._piece = _Piece()
        """Of what comes next."""
        self._unreadable = -1
        """The disk did not give what begins here."""
        self._most = config.max_message_size + READ_BYTES
        """No record is larger."""
        self._stuck = False
        """The index could not be written: logged once, not with each try."""
        self.truncate(log.max_offset)

    def truncate(self, offset: int) -> None:
        """Forget records at or behind commit log `offset`, which the log still has."""
        self._index.truncate(offset)
        self._piece = _Piece()
        self._position = self._log.record_after(self._index.end_offset)

    def start_at(self, offset: int) -> None:
        """An empty log begins here."""
        self._piece = _Piece()
        self._position = offset

    def drop_before(self, offset: int) -> list[Path]:
        """The log now begins at `offset`: detach files that only know records before it. Returns the paths to
        unlink."""
        self._position = max(self._position, offset)
        return self._index.drop_before(offset)

    def build(self, upto: int, max_records: int) -> bool:
        """Add up to `max_records` records before commit log offset `upto`; True if there are more to continue
        with."""
        position = begin = max(self._position, self._log.min_offset)
        if begin == self._unreadable:
            return False  # through the map that would be a SIGBUS
        piece = self._piece if self._piece.has(begin) else None
        keys: list[Key] = []
        found: list[Keys] = []
        seen = 0
        while position < upto and seen < max_records:
            file = self._log.files.file_at(position)
            if file is None:
                break
            source: bytes | mmap.mmap = file.map
            base, end = file.base, file.base + file.size
            if piece is not None:
                source, base, end = piece.data, piece.begin, piece.begin + len(piece.data)
            least = bulk.LEAST_RECORDS * MIN_RECORD_SIZE
            whole = None
            if min(end, upto) - position >= least and max_records - seen >= bulk.LEAST_RECORDS:
                whole = bulk.scan(source, position - base, min(end, upto) - base, max_records - seen)
            if whole is not None:
                if keys:
                    found.append(Keys.of(keys))
                    keys = []
                found.append(bulk.index_keys(whole))
                seen += len(whole.sizes)
                position = base + whole.end
                continue
            for record in read_records(source, position - base, min(end, upto) - base):
                keys += [(key, record.physical_offset, record.store_timestamp) for key in keys_of(record)]
                position += record.size
                seen += 1
                if seen >= max_records:
                    break
            else:
                if not blank_size(source, position - base, end - base):
                    break
                position = file.base + file.size
        if keys:
            found.append(Keys.of(keys))
        try:
            for some in found:
                self._index.add(some, self._clock.now_ms())
        except OSError as error:
            if not self._stuck:
                log.error("the index cannot be written, it ends at %d: %s", self._position, error)
            self._stuck = True
            self._index.truncate(self._position)
            return False
        if self._stuck and found:
            self._stuck = False
            log.warning("the index is written again, up to %d", position)
        self._position = position
        if position > begin and not self._piece.has(position):
            self._piece = _Piece()
        # Stuck at a record that cannot be read: asking again at once would continue for ever.
        return begin < position < upto

    def reading(self, upto: int) -> Callable[[], None] | None:
        """See `MessageStore.index_reading`."""
        position = max(self._position, self._log.min_offset)
        piece = self._piece
        behind = upto - position
        if behind <= 0 or (behind <= READ_BYTES and position != self._unreadable) or piece.has(position):
            return None
        size = piece.size_at(position)
        size = size if READ_BYTES < size <= self._most else READ_BYTES
        if piece.begin == position and piece.wanted >= size and position != self._unreadable:
            return None  # no record, and more of it does not make it one
        job = self._log.reading(position, size)
        piece = self._piece = _Piece(position, size)

        def work() -> None:
            try:
                piece.data = job()  # if the log was truncated, this piece is no longer used
            except FileNotFoundError:
                pass  # it expired, so this is no longer asked for; or its map is still there
            except OSError:
                self._unreadable = position
                raise
            self._unreadable = -1

        return work

    def query(self, topic: str, key: str, limit: int, begin_ms: int, end_ms: int) -> QueryResult:
        """Up to `limit` records of `topic` with `key` among their keys, or as unique id, stored between the
        two times."""
        wanted = f"{topic}#{key}"
        result = QueryResult(
            index_timestamp=self._index.end_timestamp, index_offset=max(0, self._index.end_offset)
        )
        if len(wanted) > MAX_KEY:
            return result  # no message has it, and to hash it would take long
        for offset in self._index.find(topic, key, limit * 4, begin_ms, end_ms):
            view = self._log.message_at(offset)
            if view is None or len(result.records) >= limit:
                continue
            record = read_record(view, 0, *SIZE_MAGIC.unpack_from(view))
            # Topic and key are joined by a '#', which may be in either of them.
            if (
                record.topic == topic
                and wanted in keys_of(record)
                and begin_ms <= record.store_timestamp <= end_ms
            ):
                result.records.append(view)
        return result

    def flush(self) -> int:
        """As `Index.flush`."""
        return self._index.flush()

    def close(self) -> None:
        """Close all files."""
        self._index.close()
