"""What the store answers: statuses as RocketMQ names them, and the values that go with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NamedTuple, TypeAlias

QueueKey: TypeAlias = tuple[str, int]
"""Topic and queue id."""


class PutStatus(Enum):
    """RocketMQ's `PutMessageStatus`, as far as a store alone can decide it."""

    PUT_OK = auto()
    SERVICE_NOT_AVAILABLE = auto()
    """The disk is above its warning level, or the store is closed or broken."""
    CREATE_MAPPED_FILE_FAILED = auto()
    """The disk is full or read-only."""
    MESSAGE_ILLEGAL = auto()
    """Body too large, or a batch that is not one."""
    PROPERTIES_SIZE_EXCEEDED = auto()
    LMQ_CONSUME_QUEUE_NUM_EXCEEDED = auto()
    """The message names a new light queue, and there are as many as are allowed."""


class PutResult(NamedTuple):
    """Outcome for one `StoredMessage`. Offsets are -1 unless the status is PUT_OK."""

    status: PutStatus
    physical_offset: int = -1
    """Commit log offset of the (first) record."""
    queue_offset: int = -1
    """Consume queue offset of the (first) record; 0 for a prepared message."""
    size: int = 0
    """Bytes from there to the end of the (last) record."""
    store_timestamp: int = 0
    """Wall time in ms that the record carries."""
    physical_offsets: Sequence[int] = ()
    """Of every record of a batch; empty for a single message."""

    @property
    def end_offset(self) -> int:
        """Where the (last) record ends: safe once the flushed or confirm offset is here."""
        return self.physical_offset + self.size

    @property
    def records(self) -> int:
        """Number of records."""
        return len(self.physical_offsets) or 1


class GetStatus(Enum):
    """RocketMQ's `GetMessageStatus`."""

    FOUND = auto()
    NO_MATCHED_MESSAGE = auto()
    """The filter took none of those looked at; go on at `next_offset`."""
    MESSAGE_WAS_REMOVING = auto()
    """The messages are no longer in the commit log."""
    OFFSET_FOUND_NULL = auto()
    """The consume queue has a gap here; go on at `next_offset`."""
    OFFSET_OVERFLOW_BADLY = auto()
    """Beyond the end."""
    OFFSET_OVERFLOW_ONE = auto()
    """At the end, or at a message that is in the log but not confirmed yet: wait for it."""
    OFFSET_TOO_SMALL = auto()
    NO_MATCHED_LOGIC_QUEUE = auto()
    """No such queue."""
    NO_MESSAGE_IN_QUEUE = auto()


@dataclass(slots=True)
class GetResult:
    """Answer of `MessageStore.get`."""

    status: GetStatus
    next_offset: int
    """Where to pull from next."""
    min_offset: int
    max_offset: int
    buffers: list[memoryview] = field(default_factory=list)
    """Whole records in queue order; neighbours in the log share a view. They keep their file's map alive."""
    count: int = 0
    """Messages in `buffers`."""
    size: int = 0
    """Bytes in `buffers`."""
    log_max_offset: int = 0
    """End of the queue in the log, if the offset is of a message that is not confirmed yet; else 0."""
    suggest_slave: bool = False
    """The reader is so far behind that it should read from a slave."""
    fetch: Callable[[], None] | None = None
    """Brings `buffers` into memory, if they may be out of it. To be run in another thread: it waits for the
    disk, and so does touching the buffers before. Raises `OSError` when the disk fails or the file was
    deleted."""


class Boundary(Enum):
    """Which offset a time stands for when several, or none, carry it: RocketMQ's `BoundaryType`."""

    LOWER = auto()
    """The first message at or after the time."""
    UPPER = auto()
    """The last message at or before the time."""


@dataclass(slots=True)
class QueryResult:
    """Answer of `MessageStore.query_by_key`."""

    records: list[memoryview] = field(default_factory=list)
    """Newest first."""
    index_timestamp: int = 0
    """Store time in ms up to which the index is complete."""
    index_offset: int = 0
    """Commit log offset of the newest indexed message."""


@dataclass(frozen=True, slots=True)
class QueueBounds:
    """Offsets of a queue: messages `min_offset` to `max_offset` - 1 can be read."""

    min_offset: int
    max_offset: int
