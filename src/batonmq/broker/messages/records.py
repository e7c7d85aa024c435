"""Iterates over the messages of a queue, for admin requests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from batonmq.protocol.message.record import MessageExt, decode_records
from batonmq.store.results import GetStatus

if TYPE_CHECKING:
    from batonmq.store.store import MessageStore

_BATCH = 32
_BATCH_BYTES = 256 * 1024


def records_of(
    store: MessageStore, topic: str, queue_id: int, offset: int, count: int
) -> Iterator[MessageExt]:
    """Up to `count` messages from `offset` (queue offset), bodies not inflated; fewer at the end of the
    queue."""
    end = offset + count
    while offset < end:
        found = store.get(topic, queue_id, offset, min(_BATCH, end - offset), _BATCH_BYTES)
        if not found.count and found.status is not GetStatus.MESSAGE_WAS_REMOVING:
            return
        for buffer in found.buffers:
            yield from decode_records(buffer, inflate=False)
        offset = found.next_offset
