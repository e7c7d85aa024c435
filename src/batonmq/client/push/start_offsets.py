"""Finds the offset from which a queue that was just assigned is read."""

from __future__ import annotations

from batonmq.client.offsets import OffsetStore
from batonmq.client.push.assigned import Assigned
from batonmq.protocol.bodies.clients import ConsumeFromWhere
from batonmq.protocol.bodies.common import MessageQueue
from batonmq.protocol.headers.broker.pull import (
    GetMaxOffset,
    GetMaxOffsetResponse,
    SearchOffset,
    SearchOffsetResponse,
)
from batonmq.protocol.names import is_retry_topic
from batonmq.routing.session import Session


class StartOffsets:
    """The group's committed offset; where it has none, what the user asked for."""

    def __init__(
        self, session: Session, offsets: OffsetStore, from_where: ConsumeFromWhere, from_timestamp_ms: int
    ) -> None:
        self._session = session
        self._offsets = offsets
        self._from_where = from_where
        self._from_timestamp_ms = from_timestamp_ms

    async def find(self, held: Assigned) -> None:
        """Set where the queue is read from. While no master is registered a slave says it."""
        held.buffer.next_offset = await self._of(held.queue)
        held.provisional = self._offsets.is_slaves(held.queue)

    async def confirm(self, held: Assigned) -> None:
        """The master is back: what it has as committed must not go backwards, because a slave has the
        group's offsets late. If nothing was read yet, reading begins there."""
        committed = await self._offsets.read(held.queue)
        if self._offsets.is_slaves(held.queue):
            return
        held.provisional = False
        held.floor = committed or 0
        buffer = held.buffer
        if held.floor > buffer.next_offset and not buffer.begun:
            buffer.next_offset = held.floor

    async def _of(self, queue: MessageQueue) -> int:
        committed = await self._offsets.read(queue)
        if committed is not None:
            return committed
        if self._from_where is ConsumeFromWhere.FIRST_OFFSET or is_retry_topic(queue.topic):
            return 0  # the broker corrects it to the first one stored
        if self._from_where is ConsumeFromWhere.TIMESTAMP:
            answer, _ = await self._session.call_any(
                queue, SearchOffset(queue.topic, queue.queue_id, self._from_timestamp_ms)
            )
            assert isinstance(answer.header, SearchOffsetResponse)
            return answer.header.offset
        answer, _ = await self._session.call_any(queue, GetMaxOffset(queue.topic, queue.queue_id))
        assert isinstance(answer.header, GetMaxOffsetResponse)
        return answer.header.offset
