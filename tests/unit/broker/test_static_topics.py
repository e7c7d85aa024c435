"""Static topics: a consumer of a logical queue gets every message of its parts once, in order."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batonmq.broker.statictopic.core import PartPull
from batonmq.protocol.bodies.static_topics import LogicQueueMappingItem
from batonmq.protocol.codes import PullSysFlag, ResponseCode
from batonmq.protocol.headers.broker.pull import PullMessage, PullMessageResponse
from batonmq.routing.static_topics import to_logical

SUSPEND = PullSysFlag.SUSPEND


@dataclass
class Physical:
    """A physical queue, as a broker serves it."""

    first: int
    end: int

    def answer(self, offset: int, most: int) -> tuple[int, PullMessageResponse, range]:
        found = range(0)
        if self.end == 0:
            code = ResponseCode.PULL_OFFSET_MOVED if offset else ResponseCode.PULL_NOT_FOUND
            following = 0
        elif offset < self.first:
            code, following = ResponseCode.PULL_OFFSET_MOVED, self.first
        elif offset > self.end:
            code, following = ResponseCode.PULL_OFFSET_MOVED, self.end
        elif offset == self.end:
            code, following = ResponseCode.PULL_NOT_FOUND, offset
        else:
            found = range(offset, min(self.end, offset + most))
            code, following = ResponseCode.SUCCESS, found.stop
        return code, PullMessageResponse(0, following, self.first, self.end), found


def pull(offset: int, items: list[LogicQueueMappingItem], **fields: int) -> PartPull:
    values = {"sys_flag": SUSPEND, "commit_offset": 0, "max_msg_nums": 4, **fields}
    header = PullMessage("g", "T", 0, offset, suspend_timeout_millis=0, sub_version=0, **values)
    found = PartPull.of(header, items)
    assert found is not None
    return found


@st.composite
def logical_queues(draw: st.DrawFn) -> tuple[list[LogicQueueMappingItem], list[Physical]]:
    items, queues, begin = [], [], 0
    for gen in range(draw(st.integers(1, 4))):
        end = draw(st.integers(0, 9))
        first = draw(st.integers(0, end))
        items.append(LogicQueueMappingItem(gen=gen, queue_id=gen, bname=f"b{gen}", logic_offset=begin))
        queues.append(Physical(first, end))
        begin += end + draw(st.integers(1, 20))
    if draw(st.booleans()):  # a remapping that is not finished
        items.append(LogicQueueMappingItem(gen=len(items), queue_id=9, bname="new", logic_offset=-1))
        queues.append(Physical(0, 3))
    return items, queues


@given(logical_queues(), st.integers(0, 60))
def test_every_message_is_read_once_and_in_order(
    queue: tuple[list[LogicQueueMappingItem], list[Physical]], offset: int
) -> None:
    items, queues = queue
    decided = [(item, queues[number]) for number, item in enumerate(items) if item.logic_offset >= 0]
    stored = [to_logical(item, at) for item, each in decided for at in range(each.first, each.end)]
    seen: list[int] = []
    start = offset
    for _ in range(50):
        asked = pull(offset, items)
        physical = queues[asked.part.gen]
        code, answer, found = physical.answer(asked.header.queue_offset, asked.header.max_msg_nums)
        code, answer = asked.answered(code, answer)
        assert answer.offset_delta is not None
        seen += [at + answer.offset_delta for at in found]
        if code == ResponseCode.PULL_NOT_FOUND:
            break
        assert answer.next_begin_offset != offset or found
        offset = answer.next_begin_offset
    else:
        pytest.fail(f"the consumer goes round in circles at {offset}")
    last, end = decided[-1]
    assert seen == [at for at in stored if at >= min(start, to_logical(last, end.end))]


def test_only_the_leader_holds_a_pull_until_a_message_comes() -> None:
    items = [
        LogicQueueMappingItem(gen=0, bname="a"),
        LogicQueueMappingItem(gen=1, bname="b", logic_offset=100),
    ]
    assert not pull(5, items).header.sys_flag & SUSPEND
    assert pull(100, items).header.sys_flag & SUSPEND


def test_a_pull_stays_within_a_part_whose_end_is_known() -> None:
    items = [
        LogicQueueMappingItem(gen=0, bname="a", start_offset=10, end_offset=15),
        LogicQueueMappingItem(gen=1, bname="b", logic_offset=100),
    ]
    asked = pull(2, items, max_msg_nums=32)
    assert (asked.header.queue_offset, asked.header.max_msg_nums) == (12, 3)
    _, answer = asked.answered(ResponseCode.SUCCESS, PullMessageResponse(0, 15, 0, 20))
    assert (answer.next_begin_offset, answer.min_offset, answer.offset_delta) == (5, 0, -10)


def test_messages_of_a_part_that_are_not_confirmed_yet_are_waited_for() -> None:
    """A new master of the part has 100 messages in its log, and shows 80 of them."""
    items = [
        LogicQueueMappingItem(gen=0, queue_id=0, bname="a", logic_offset=0, start_offset=0, end_offset=100),
        LogicQueueMappingItem(gen=1, queue_id=0, bname="b", logic_offset=100, start_offset=0),
    ]
    code, header = pull(80, items).answered(ResponseCode.PULL_NOT_FOUND, PullMessageResponse(0, 80, 0, 100))
    assert (code, header.next_begin_offset) == (ResponseCode.PULL_NOT_FOUND, 80)
    code, header = pull(80, items).answered(ResponseCode.PULL_NOT_FOUND, PullMessageResponse(0, 80, 0, 80))
    assert (code, header.next_begin_offset) == (ResponseCode.PULL_RETRY_IMMEDIATELY, 100), "they are lost"


def test_a_commit_of_another_part_is_left_to_the_next_regular_one() -> None:
    items = [
        LogicQueueMappingItem(gen=0, bname="a"),
        LogicQueueMappingItem(gen=1, bname="b", logic_offset=100),
    ]
    flags = PullSysFlag.COMMIT_OFFSET
    same = pull(105, items, sys_flag=flags, commit_offset=103).header
    assert (same.sys_flag & flags, same.commit_offset) == (flags, 3)
    assert not pull(105, items, sys_flag=flags, commit_offset=99).header.sys_flag & flags


def test_a_queue_whose_only_part_has_no_offset_cannot_be_read() -> None:
    header = PullMessage("g", "T", 0, 0, 1, 0, 0, 0, 0)
    assert PartPull.of(header, [LogicQueueMappingItem(logic_offset=-1)]) is None
