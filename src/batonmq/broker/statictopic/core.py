"""Translates a pull of a logical queue into one of the physical queue, and its answer back.

No I/O. Source: `PullMessageProcessor` of Apache RocketMQ 5 (`rewriteRequestForStaticTopic`,
`rewriteResponseForStaticTopic`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from batonmq.protocol.bodies.static_topics import LogicQueueMappingItem
from batonmq.protocol.codes import PullSysFlag, ResponseCode
from batonmq.protocol.headers.broker.pull import PullMessage, PullMessageResponse
from batonmq.routing.static_topics import (
    has_end,
    known_end,
    part_after,
    part_at,
    to_logical,
    to_physical,
)


@dataclass(frozen=True, slots=True)
class PartPull:
    """A pull of one part of a logical queue."""

    items: Sequence[LogicQueueMappingItem]
    part: LogicQueueMappingItem
    header: PullMessage
    """For the part's physical queue."""

    @classmethod
    def of(cls, header: PullMessage, items: Sequence[LogicQueueMappingItem]) -> PartPull | None:
        """The pull for the part that has the offset; None if no part has a logic offset."""
        part = part_at(items, header.queue_offset)
        if part is None:
            return None
        offset, most, flags = to_physical(part, header.queue_offset), header.max_msg_nums, header.sys_flag
        if has_end(part):
            most = max(1, min(most, part.end_offset - offset))
        if part is not items[-1]:
            flags &= ~PullSysFlag.SUSPEND  # the next message comes to another queue
        commit = header.commit_offset
        if flags & PullSysFlag.COMMIT_OFFSET:
            if part_at(items, commit) is part:
                commit = to_physical(part, commit)
            else:
                # It belongs to the queue of another part; the consumer's next regular commit stores it.
                flags &= ~PullSysFlag.COMMIT_OFFSET
        header = replace(
            header,
            queue_id=part.queue_id,
            queue_offset=offset,
            max_msg_nums=most,
            sys_flag=flags,
            commit_offset=commit,
            lo=False,
        )
        return cls(items, part, header)

    @property
    def is_last(self) -> bool:
        """Whether the part takes the messages of the logical queue."""
        return self.part is self.items[-1]

    def answered(self, code: int, answer: PullMessageResponse) -> tuple[int, PullMessageResponse]:
        """Code and header of the answer to the pull of the logical queue."""
        part, items = self.part, self.items
        asked, following = self.header.queue_offset, part_after(items, part)
        first, end = answer.min_offset, answer.max_offset
        next_offset = answer.next_begin_offset
        if code != ResponseCode.SUCCESS:
            if asked >= end and following is not None:
                part, code = following, ResponseCode.PULL_RETRY_IMMEDIATELY
                next_offset = first = end = part.start_offset
            elif asked >= end and not self.is_last:
                code = ResponseCode.PULL_NOT_FOUND  # the next part has no logic offset yet
            elif asked < first:
                next_offset = first
                oldest = part_at(items, 0) is part
                code = ResponseCode.PULL_OFFSET_MOVED if oldest else ResponseCode.PULL_RETRY_IMMEDIATELY
        if has_end(part):
            next_offset = min(next_offset, part.end_offset)
        return code, replace(
            answer,
            next_begin_offset=to_logical(part, next_offset),
            min_offset=to_logical(part, first),
            max_offset=max(to_logical(part, end), known_end(items)),
            offset_delta=part.logic_offset - part.start_offset,
        )


def answered_by_slave(asked: int, code: int, answer: PullMessageResponse) -> tuple[int, PullMessageResponse]:
    """Code and header of a slave's answer to a pull of a part that has ended at the master.

    The slave may lack the last messages: if its log ended the part, consumers would continue at the next one
    and never get them.
    """
    if code == ResponseCode.SUCCESS or asked < answer.max_offset:
        return code, answer
    return ResponseCode.PULL_NOT_FOUND, replace(answer, next_begin_offset=asked, max_offset=asked + 1)
