"""Pulls behind the last message that a broker shows, in each role."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.unit.broker.conftest import Served
from tests.unit.broker.fakes import become_slave

from batonmq.broker.messages.part import MessagesPart
from batonmq.broker.messages.puller import PullAnswer
from batonmq.protocol.codes import PullSysFlag, ResponseCode
from batonmq.protocol.headers.broker.pull import PullMessage


class Call:
    """A consumer."""

    peer = "10.0.0.9:1"
    client = object()
    finished = False

    def __init__(self) -> None:
        self.answers: list[PullAnswer] = []

    def answer(self, answer: PullAnswer) -> None:
        self.answers.append(answer)


class Following:
    """The replication of a slave with a link to its master, or without."""

    def __init__(self, following: bool) -> None:
        self.following = following


MOVED, EMPTY = ResponseCode.PULL_OFFSET_MOVED, ResponseCode.PULL_NOT_FOUND
AGAIN = ResponseCode.PULL_RETRY_IMMEDIATELY


def follow(served: Served, *, linked: bool, **keys: bool) -> None:
    """Become a slave that serves pulls."""
    broker = served.broker
    become_slave(broker, "10.0.0.2:10911")
    broker.replication = Following(linked)  # type: ignore[assignment]
    broker.settings.broker = replace(broker.settings.broker, slave_read_enable=True, **keys)


def pull(
    served: Served, offset: int, queue_id: int = 0, flags: int = PullSysFlag.SUBSCRIPTION
) -> tuple[int, int] | None:
    """Code, and where the consumer goes on; None if the pull is held."""
    (part,) = (part for part in served.parts if isinstance(part, MessagesPart))
    answer: Any = part.puller.pull(header_of(offset, queue_id, flags), Call())  # type: ignore[arg-type]
    return None if answer is None else (answer.code, answer.header.next_begin_offset)


def header_of(offset: int, queue_id: int = 0, flags: int = PullSysFlag.SUBSCRIPTION) -> PullMessage:
    return PullMessage(
        consumer_group="GroupJ",
        topic="TopicJ",
        queue_id=queue_id,
        queue_offset=offset,
        max_msg_nums=1,
        sys_flag=flags,
        commit_offset=0,
        suspend_timeout_millis=1_000,
        sub_version=0,
        subscription="*",
        expression_type="TAG",
    )


@pytest.mark.parametrize(
    ("role", "beyond", "of_nothing"),
    [
        ("master", (MOVED, 3), (MOVED, 0)),
        ("slave", (AGAIN, 9), (AGAIN, 9)),
        ("slave without its master", (EMPTY, 9), (EMPTY, 9)),
        ("acting", (EMPTY, 9), (EMPTY, 9)),
        ("slave that checks", (MOVED, 3), (MOVED, 0)),
    ],
)
async def test_only_a_master_sends_consumers_back(
    served: Served, role: str, beyond: tuple[int, int], of_nothing: tuple[int, int]
) -> None:
    for body in (b"0", b"1", b"2"):
        served.put(0, body)
    if role != "master":
        follow(served, linked=role == "slave", offset_check_in_slave=role == "slave that checks")
    if role == "acting":
        served.broker.role.set_acting(True)
    assert pull(served, 9) == beyond
    assert pull(served, 9, queue_id=3) == of_nothing
    held = PullSysFlag.SUBSCRIPTION | PullSysFlag.SUSPEND
    assert (pull(served, 9, flags=held) is None) == (beyond[0] == EMPTY), "waits for the message"


async def test_the_end_in_the_log_is_named_if_messages_are_not_confirmed_yet(served: Served) -> None:
    served.put(0, b"0")
    (part,) = (part for part in served.parts if isinstance(part, MessagesPart))
    ends = []
    for counted in (1, 5):
        served.store._queues.by_key["TopicJ", 0].next_offset = counted
        answer: Any = part.puller.pull(header_of(1), Call())  # type: ignore[arg-type]
        ends.append((answer.code, answer.header.next_begin_offset, answer.header.max_offset))
    assert ends == [(EMPTY, 1, 1), (EMPTY, 1, 5)]


async def test_a_slave_passes_on_where_an_operator_moved_a_consumer(served: Served) -> None:
    for body in (b"0", b"1", b"2"):
        served.put(0, body)
    follow(served, linked=True, use_server_side_reset_offset=True)
    served.broker.tables.offsets.reset("GroupJ", "TopicJ", 0, 1)
    assert pull(served, 3) == (AGAIN, 1)


async def test_a_consumer_before_the_first_message_of_a_slave_asks_the_master(served: Served) -> None:
    served.put(0, b"0")
    queue = served.store._queues.by_key["TopicJ", 0]
    queue.min_offset = 1
    assert pull(served, 0) == (MOVED, 1)
    follow(served, linked=True)
    assert pull(served, 0) == (AGAIN, 0)
