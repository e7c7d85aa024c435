"""The parts that decide: rebalance, buffers, messages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batonmq.client.message import Message
from batonmq.client.process_queue import ProcessQueue
from batonmq.client.rebalance import allocate_averagely
from batonmq.protocol.bodies.common import MessageQueue
from batonmq.protocol.errors import MQError
from batonmq.protocol.message.properties import decode_properties
from batonmq.protocol.message.record import MessageExt

# Results of RocketMQ's AllocateMessageQueueAveragely for 8 queues and 1 to 9 clients.
AVERAGE = {
    1: [[0, 1, 2, 3, 4, 5, 6, 7]],
    3: [[0, 1, 2], [3, 4, 5], [6, 7]],
    5: [[0, 1], [2, 3], [4, 5], [6], [7]],
    9: [[0], [1], [2], [3], [4], [5], [6], [7], []],
}


@pytest.mark.parametrize("count", AVERAGE)
def test_average_allocation(count: int) -> None:
    queues = [MessageQueue("t", "b", number) for number in (3, 1, 2, 0, 7, 6, 5, 4)]
    clients = [f"client{number}" for number in reversed(range(count))]
    shares = [
        [queue.queue_id for queue in allocate_averagely(client, clients, queues)]
        for client in sorted(clients)
    ]
    assert shares == AVERAGE[count]
    assert allocate_averagely("stranger", clients, queues) == []


@given(st.sets(st.text(min_size=1, max_size=5), min_size=1, max_size=12), st.integers(0, 40))
def test_every_queue_has_one_owner(clients: set[str], count: int) -> None:
    queues = [MessageQueue("t", "b", number) for number in range(count)]
    owned = [queue for client in clients for queue in allocate_averagely(client, clients, queues)]
    assert sorted(owned) == queues


def message(offset: int, size: int = 10) -> MessageExt:
    return MessageExt(
        topic="t", queue_id=0, queue_offset=offset, physical_offset=offset * 100, body=bytes(size)
    )


def test_the_commit_never_passes_an_unfinished_message() -> None:
    buffer = ProcessQueue(10)
    assert buffer.commit_offset == 10
    held = [message(offset) for offset in (10, 11, 14)]
    buffer.add(held)
    buffer.next_offset = 20
    buffer.done(held[1:2])
    assert buffer.commit_offset == 10
    buffer.done(held[:1])
    assert buffer.commit_offset == 14
    buffer.done(held[2:])
    assert (buffer.commit_offset, buffer.count, buffer.size) == (20, 0, 0)
    buffer.done(held)  # twice does no harm
    assert buffer.size == 0


@given(st.lists(st.integers(1, 3), min_size=1, max_size=30), st.randoms())
def test_commit_offset_is_the_least_unfinished(steps: list[int], rng: object) -> None:
    buffer, offset, held = ProcessQueue(0), 0, []
    for step in steps:
        offset += step
        held.append(message(offset))
    buffer.add(held)
    buffer.next_offset = offset + 1
    order = held[:]
    rng.shuffle(order)  # type: ignore[attr-defined]
    for done in order:
        held.remove(done)
        buffer.done([done])
        assert buffer.commit_offset == (held[0].queue_offset if held else offset + 1)


FULL = [
    ([0, 1, 2], 10, 3, 1000, 100, True),
    ([0, 1], 10, 3, 1000, 100, False),
    ([0], 1000, 3, 1000, 100, True),
    ([0, 101], 1, 9, 1000, 100, True),
]


@pytest.mark.parametrize(("offsets", "size", "count", "total", "span", "full"), FULL)
def test_flow_control(offsets: list[int], size: int, count: int, total: int, span: int, full: bool) -> None:
    buffer = ProcessQueue(0)
    buffer.add([message(offset, size) for offset in offsets])
    assert buffer.is_full(count, total, span) is full


def test_properties_of_a_message() -> None:
    made = Message("t", b"x", tags="a", keys=["k1", "k2"], properties={"name": "grün"}, delay_level=3)
    made.unique_id = "U"
    assert decode_properties(made.encoded_properties()) == {
        "KEYS": "k1 k2",
        "UNIQ_KEY": "U",
        "WAIT": "true",
        "TAGS": "a",
        "DELAY": "3",
        "name": "grün",
    }


ILLEGAL = [
    (Message("", b"x"), "blank"),
    (Message("a b", b"x"), "illegal characters"),
    (Message("SCHEDULE_TOPIC_XXXX", b"x"), "forbidden"),
    (Message("t", b""), "empty"),
    (Message("t", b"x" * 101), "limit of 100"),
    (Message("t", b"x", keys="a b"), "white space"),
    (Message("t", b"x", keys=[""]), "white space"),
    (Message("t", b"x", keys=["a", " b"]), "white space"),
    (Message("t", b"x", properties={"KEYS": "x"}), "reserved"),
    (Message("t", b"x", properties={"a": ""}), "not be empty"),
    (Message("t", b"x", properties={"a": "\x01"}), "separator"),
    (Message("t", b"x", properties={"a": "x" * 40_000}), "32767"),
]


@pytest.mark.parametrize(("wrong", "why"), ILLEGAL)
def test_what_no_broker_would_take(wrong: Message, why: str) -> None:
    with pytest.raises(MQError, match=why):
        wrong.check(100)
        wrong.encoded_properties()
