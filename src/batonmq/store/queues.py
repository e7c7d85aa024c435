"""All consume queues of a store: which there are, and which of their files a flush has to bring to disk."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Mapping
from itertools import repeat
from pathlib import Path
from typing import Final

from batonmq.common.threads import Threads
from batonmq.protocol.names import is_light
from batonmq.store.consumequeue import ConsumeQueue, OpenFiles, no_queue_reason
from batonmq.store.mapped import NOT_OPENED, sync_path
from batonmq.store.policy import UnitCode

log = logging.getLogger(__name__)

QueueKey = tuple[str, int]
"""Topic and queue id."""

MANY: Final = 200
"""So many files are synced by several threads: they share the commits of the file system's journal. 1,500 new
files took 5.6 s one after the other, and 0.2 s with 8 threads (ext4)."""
SYNCING_THREADS: Final = 8


class ConsumeQueues:
    """Iterates over the queues. Belongs to the event loop's thread; only `sync` may run in another one."""

    __slots__ = (
        "_directory",
        "_dirty",
        "_file_size",
        "_lost",
        "_open_files",
        "_unit_codes",
        "_without_queue",
        "by_key",
        "light_count",
    )

    def __init__(self, directory: Path, file_size: int, unit_codes: Mapping[str, UnitCode]) -> None:
        """Open those that `directory` has. `unit_codes`: see `StorePolicy`."""
        self._directory = directory
        self._unit_codes = unit_codes
        self._file_size = file_size
        self._open_files = OpenFiles()
        self._dirty: deque[tuple[ConsumeQueue | None, str]] = deque()
        self._lost: tuple[object, ...] = ()
        """Of the fsync that failed: error number, text and path."""
        self._without_queue = 0
        """Messages of the log that no consume queue can hold."""
        self.by_key: dict[QueueKey, ConsumeQueue] = {}
        self.light_count = 0
        """How many of them are light queues."""
        for topic_path in sorted(directory.glob("*/*")):
            if topic_path.name.isdigit() and topic_path.is_dir():
                self.ensure(topic_path.parent.name, int(topic_path.name))

    def __iter__(self) -> Iterator[ConsumeQueue]:
        return iter(self.by_key.values())

    @property
    def end_physical(self) -> int:
        """Where in the commit log the record of the last unit of all ends; 0 without units."""
        return max((queue.end_physical for queue in self), default=0)

    def last_record_begin(self) -> int:
        """Where in the commit log the record of the last unit of all begins; 0 without units."""
        last = max(self, key=lambda queue: queue.end_physical, default=None)
        unit = None if last is None or not last.end_physical else last.unit(last.max_offset - 1)
        return 0 if unit is None else unit[0]

    def ensure(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue of these names, which must be such as can be directories (`no_queue_reason`)."""
        queue = self.by_key.get((topic, queue_id))
        if queue is None:
            queue = ConsumeQueue(
                self._directory / topic / str(queue_id),
                topic,
                queue_id,
                self._file_size,
                self._open_files,
                self._dirty,
                self._unit_codes.get(topic),
            )
            self.by_key[topic, queue_id] = queue
            if is_light(topic):
                self.light_count += 1
        return queue

    def of_record(self, topic: str, queue_id: int, physical_offset: int) -> ConsumeQueue | None:
        """The queue of a record of the log, which may be another broker's; None if it can have none."""
        reason = no_queue_reason(topic, queue_id)
        if reason is None:
            return self.ensure(topic, queue_id)
        self.cannot_hold(topic, physical_offset, reason)
        return None

    def cannot_hold(self, topic: str, physical_offset: int, reason: str) -> None:
        """Say of a record of the log that it enters no queue."""
        self._without_queue += 1
        if self._without_queue.bit_count() == 1:  # the 1st, 2nd, 4th, ...: many of them make few lines
            log.error(
                "the message at %d of the log cannot be read: its topic %.300r %s (%d such so far)",
                physical_offset,
                topic,
                reason,
                self._without_queue,
            )

    def truncate(self, physical_offset: int) -> None:
        """Forget every unit of a record that does not end at or before this commit log offset."""
        for queue in self:
            if queue.end_physical > physical_offset:
                queue.truncate(physical_offset)

    def set_min_physical(self, offset: int) -> list[Path]:
        """The commit log now begins at `offset`: let go of what is before. Returns the paths to unlink."""
        paths = []
        for queue in self:
            paths += queue.set_min_physical(offset)
        return paths

    def sync(self) -> None:
        """Bring to disk what was written since the last call. Blocking; raises `OSError`.

        After a failed fsync it is unknown what is on disk, and a second one says nothing of it. So every
        later call fails too, and the next start builds the queues from the log.
        """
        if self._lost:
            raise OSError(*self._lost)
        count = len(self._dirty)
        if count < MANY:
            for _ in range(count):
                if (failure := self._sync_next()) is not None:
                    raise failure
            return
        turns = repeat(None, count)  # the threads take from it in turn
        with Threads(SYNCING_THREADS, "batonmq-sync") as threads:
            try:
                works = [threads.submit(self._sync_some, turns) for _ in range(SYNCING_THREADS)]
            except RuntimeError:  # no thread is to be had: this one does it
                works = []
        failures = [failure for work in works for failure in work.result()] + self._sync_some(turns)
        if failures:
            raise next((each for each in failures if each.errno not in NOT_OPENED), failures[0])

    def _sync_some(self, turns: Iterator[None]) -> list[OSError]:
        return [failure for _ in turns if (failure := self._sync_next()) is not None]

    def _sync_next(self) -> OSError | None:
        """Sync the first of those that are to be synced. Returns what went wrong."""
        queue, path = self._dirty.popleft()
        if queue is not None:
            queue.is_dirty = False
        try:
            sync_path(Path(path))
        except OSError as error:
            self._dirty.append((None, path))
            if error.errno not in NOT_OPENED:
                self._lost = error.errno, error.strerror, path
            return error
        return None

    def remove_topic(self, topic: str) -> None:
        """Delete all queues of `topic`."""
        for key in [key for key in self.by_key if key[0] == topic]:
            self.by_key.pop(key).remove()
            if is_light(topic):
                self.light_count -= 1
        if no_queue_reason(topic, 0) is not None:
            return
        directory = self._directory / topic
        if directory.is_dir() and not any(directory.iterdir()):
            directory.rmdir()

    def remove_all(self) -> None:
        """Delete every queue."""
        for queue in self:
            queue.remove()
        self.by_key.clear()
        self.light_count = 0

    def close(self) -> None:
        """Close all files."""
        self._open_files.close()
