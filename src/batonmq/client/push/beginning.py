"""Where a queue that was just taken is read from."""

from __future__ import annotations

from batonmq.client.offsets import OffsetStore
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


class Beginning:
    """The group's committed offset; where it has none, what the user asked for."""

    def __init__(
        self, session: Session, offsets: OffsetStore, from_where: ConsumeFromWhere, from_timestamp_ms: int
    ) -> None:
        self._session = session
        self._offsets = offsets
        self._from_where = from_where
        self._from_timestamp_ms = from_timestamp_ms

    async def of(self, queue: MessageQueue) -> int:
        committed = await self._offsets.read(queue)
        if committed is not None:
            return committed
        if self._from_where is ConsumeFromWhere.FIRST_OFFSET or is_retry_topic(queue.topic):
            return 0  # the broker corrects it to the first one stored
        if self._from_where is ConsumeFromWhere.TIMESTAMP:
            answer = await self._session.call_for(
                queue, SearchOffset(queue.topic, queue.queue_id, self._from_timestamp_ms)
            )
            assert isinstance(answer.header, SearchOffsetResponse)
            return answer.header.offset
        answer = await self._session.call_for(queue, GetMaxOffset(queue.topic, queue.queue_id))
        assert isinstance(answer.header, GetMaxOffsetResponse)
        return answer.header.offset
