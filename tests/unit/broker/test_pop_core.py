"""Outstanding check points, floors of revive queues, held pops, ordered batches, shares of clients."""

from __future__ import annotations

import random

import pytest
from tests.unit.broker.fakes import make_broker

from batonmq.broker.pop import order_core
from batonmq.broker.pop.assignment_core import AVERAGELY, BY_CIRCLE, allocate, allocate_for_pop
from batonmq.broker.pop.core import (
    NOT_IN_LOG,
    CheckPoints,
    Floors,
    Outstanding,
    outstanding_of,
    record_of,
)
from batonmq.broker.pop.held_pops import HeldPops
from batonmq.broker.pop.positions import Positions
from batonmq.protocol.bodies.common import MessageQueue
from batonmq.protocol.bodies.pop import CheckPoint, OrderInfo, OrderRecord
from batonmq.protocol.json import decode, encode


def entry(start: int = 10, *offsets: int, pop_time: int = 1_000, invisible: int = 500) -> Outstanding:
    return Outstanding(("T", "g", 0, start, pop_time), offsets or (start,), invisible, 3, broker_name="b")


# -- check points


def test_a_check_point_survives_its_record() -> None:
    before = entry(10, 10, 12, 15)
    before.acked, before.pending = 0b001, 0b100
    after = outstanding_of(decode(encode(record_of(before, 16)), CheckPoint), 3)
    assert after is not None
    assert after.key == before.key
    assert after.offsets == (10, 12, 15)
    assert after.due_ms == 1_500
    assert after.unacknowledged == [12]


def test_a_check_point_of_an_old_rocketmq_broker_has_no_differences() -> None:
    read = outstanding_of(CheckPoint(5, 1, 2, 0, 3, 0, "T", "g"), 0)
    assert read is not None
    assert read.offsets == (5, 6, 7)


@pytest.mark.parametrize(
    "record",
    [
        CheckPoint(topic="", consumer_group="g", differences=[0]),
        CheckPoint(topic="T", consumer_group="", differences=[0]),
        CheckPoint(topic="T", consumer_group="g"),
        CheckPoint(topic="T", consumer_group="g", differences=[-1]),
        CheckPoint(topic="T", consumer_group="g", differences=[0] * 128),
        CheckPoint(topic="T", consumer_group="g", differences=[0], invisible_time=1 << 62),
        CheckPoint(topic="T", consumer_group="g", differences=[0], start_offset=-5),
        CheckPoint(topic="T", consumer_group="g", differences=[0], queue_id=-5),
    ],
)
def test_what_is_not_a_check_point_is_refused(record: CheckPoint) -> None:
    assert outstanding_of(record, 0) is None


def test_a_huge_number_of_messages_is_not_believed() -> None:
    read = outstanding_of(CheckPoint(num=1 << 40, topic="T", consumer_group="g"), 0)
    assert read is not None
    assert len(read.offsets) == 127


def test_bits_stand_for_offsets_of_the_batch_only() -> None:
    one = entry(10, 10, 12)
    assert one.bits_of([12]) == 0b10
    assert one.bits_of([11, 99]) == 0
    one.acked = 0b11
    assert one.done


def test_the_last_consumed_check_points_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("batonmq.broker.pop.core.MOST_CONSUMED", 2)
    points = CheckPoints()
    entries = [entry(start, start, start + 1) for start in (10, 20, 30)]
    for each in entries:
        each.consumed = 0b01
        points.remember(each)
    assert [points.is_consumed(each.key, [each.key[3]]) for each in entries] == [False, True, True]
    assert not points.is_consumed(entries[2].key, [31])  # it was revived
    assert not points.is_consumed(entries[2].key, [99])
    points.forget_consumed()
    assert not points.is_consumed(entries[2].key, [30])


def test_due_check_points_are_returned_once() -> None:
    points = CheckPoints()
    early, late = entry(1, pop_time=0), entry(2, pop_time=1_000)
    points.add(late)
    points.add(early)
    assert points.next_due_ms() == 500
    assert points.take_due(499, 10) == []
    assert points.take_due(5_000, 1) == [early]
    assert points.take_due(5_000, 10) == [late]
    assert points.take_due(5_000, 10) == []
    points.postpone(early, 7_000)
    assert points.next_due_ms() == 7_000


def test_a_settled_check_point_is_never_due() -> None:
    points = CheckPoints()
    one = entry()
    points.add(one)
    points.remove(one)
    assert points.take_due(1 << 40, 10) == []
    assert points.next_due_ms() is None
    assert len(points) == 0


def test_settled_check_points_do_not_stay_in_memory() -> None:
    points = CheckPoints()
    for n in range(5_000):
        one = entry(n, invisible=1 << 40)
        points.add(one)
        points.remove(one)
    assert len(points._due) < 2_000


# -- floors


def test_a_queue_is_settled_up_to_the_first_record_that_is_needed() -> None:
    floors = Floors()
    assert floors.settled(0) == -1
    floors.hold(0, 3)
    floors.hold(0, 5)
    floors.know(0, 9)
    assert floors.settled(0) == 2
    floors.release(0, 3)
    assert floors.settled(0) == 4
    floors.release(0, 5)
    assert floors.settled(0) == 9


def test_a_late_hold_lowers_the_floor() -> None:
    floors = Floors()
    floors.know(0, 9)
    floors.hold(0, 4)
    assert floors.settled(0) == 3


def test_floors_match_a_plain_model() -> None:
    rng = random.Random(7)
    floors, held, known = Floors(), set(), -1
    for _ in range(2_000):
        if rng.random() < 0.5:
            known += 1
            floors.hold(0, known)
            held.add(known)
        elif held:
            gone = rng.choice(sorted(held))
            floors.release(0, gone)
            held.discard(gone)
        assert floors.settled(0) == (min(held) - 1 if held else known)
        assert floors.count(0) == len(held)


# -- ordered batches


def batch(*offsets: int, attempt: str | None = None, previous: OrderInfo | None = None) -> OrderInfo:
    return order_core.new_batch(previous, attempt, 1_000, 500, offsets)


def test_a_batch_blocks_its_queue_until_it_is_acknowledged_or_visible() -> None:
    info = batch(5, 6, 8)
    assert order_core.offsets_of(info) == [5, 6, 8]
    assert order_core.free_at(info, None, 1_200) == 1_500
    assert order_core.free_at(info, None, 1_500) is None
    info.next_visible[6] = 9_000
    assert order_core.free_at(info, None, 1_600) == 9_000
    info.acked = 0b010
    assert order_core.free_at(info, None, 1_600) is None
    info.acked = 0b111
    assert order_core.free_at(info, None, 1_000) is None
    assert order_core.is_done(info)


def test_a_clock_that_runs_behind_does_not_block_a_queue_for_long() -> None:
    info = batch(5, 6)
    order_core.limit_wait(info, 400)
    assert order_core.free_at(info, None, 400) == 900
    assert order_core.bit_of(info, 6, 1_000) == 0b10
    later = batch(5, 6)
    order_core.limit_wait(later, 1_200)
    assert order_core.free_at(later, None, 1_200) == 1_500


def test_the_same_attempt_gets_its_batch_again() -> None:
    info = batch(5, attempt="x")
    assert order_core.free_at(info, "x", 1_200) is None
    assert order_core.free_at(info, "y", 1_200) == 1_500
    assert order_core.free_at(batch(5), None, 1_200) == 1_500


def test_the_next_offset_is_the_first_unacknowledged_one() -> None:
    info = batch(5, 6, 8)
    assert order_core.next_offset(info) == 5
    info.acked = 0b101
    assert order_core.next_offset(info) == 6
    info.acked = 0b111
    assert order_core.next_offset(info) == 9


def test_acks_of_other_batches_do_not_count() -> None:
    info = batch(5, 6)
    assert order_core.bit_of(info, 6, 1_000) == 0b10
    assert order_core.bit_of(info, 7, 1_000) == order_core.ILLEGAL
    assert order_core.bit_of(info, 6, 999) == order_core.IGNORED


def test_deliveries_are_counted_except_for_a_repeated_attempt() -> None:
    first = batch(5, 6, attempt="a")
    second = batch(5, 6, 7, attempt="b", previous=first)
    assert second.consumed == {5: 1, 6: 1}
    third = batch(5, 6, 7, attempt="b", previous=second)
    assert third.consumed == {5: 1, 6: 1}
    fourth = batch(5, 7, attempt="c", previous=third)
    assert fourth.consumed == {5: 2, 7: 1}
    assert order_core.order_count_info(second, "T", 3) == "0 qo3%5 1;0 qo3%6 1;0 3 0"
    assert order_core.order_count_info(fourth, "T", 3) == "0 qo3%5 2;0 qo3%7 1;0 3 1"


@pytest.mark.parametrize(
    "record",
    [
        OrderRecord("", "g", 0, 0, batch(1)),
        OrderRecord("T", "g", -1, 0, batch(1)),
        OrderRecord("T", "g", 0, 1 << 63, batch(1)),
        OrderRecord("T", "g", 0, 0, OrderInfo(offset_list=[1, 3, 2])),
        OrderRecord("T", "g", 0, 0, OrderInfo(offset_list=[1], acked=-1)),
    ],
)
def test_what_is_not_a_state_of_a_queue_is_refused(record: OrderRecord) -> None:
    assert not order_core.plausible(record)


def test_java_writes_integer_keys_without_quotes() -> None:
    info = decode(b'{"popTime":5,"i":60000,"o":[3,1],"ot":{4:9},"oc":{3:1},"l":7,"cm":2,"a":"x"}', OrderInfo)
    assert (info.offset_list, info.next_visible, info.consumed, info.acked) == ([3, 1], {4: 9}, {3: 1}, 2)
    assert order_core.offsets_of(info) == [3, 4]


# -- held pops


def test_a_line_runs_when_its_queue_or_a_retry_topic_grows() -> None:
    held: HeldPops[str] = HeldPops()
    held.hold("T", ("R",), "g", -1, 100, "any")
    held.hold("T", ("R",), "g", 2, 100, "two")
    assert {line.queue_id for line in held.lines_for([(("T", 1), 5)])} == {-1}
    assert {line.queue_id for line in held.lines_for([(("T", 2), 5)])} == {-1, 2}
    assert {line.queue_id for line in held.lines_for([(("R", 0), 5)])} == {-1, 2}
    assert held.lines_for([(("U", 0), 5)]) == []


def test_released_and_expired_pops_leave_nothing_behind() -> None:
    held: HeldPops[int] = HeldPops()
    for n in range(300):
        held.hold("T", ("R",), f"g{n % 7}", -1, 100 + n, n)
    expired = held.expire(199)
    assert [each.pop for each in expired] == list(range(100))
    for each in expired:
        held.release(each)
    for each in held.all():
        held.release(each)
        held.release(each)
    assert len(held) == 0
    assert held.lines == 0
    assert held._by_topic == {}
    assert held.next_deadline_ms() is None


# -- shares


def queues(count: int, *brokers: str) -> list[MessageQueue]:
    return [MessageQueue("T", name, n) for name in brokers or ("a",) for n in range(count)]


@pytest.mark.parametrize("strategy", [AVERAGELY, BY_CIRCLE])
@pytest.mark.parametrize("clients", [1, 2, 3, 5, 9])
def test_pulling_clients_share_all_queues_without_overlap(strategy: str, clients: int) -> None:
    names = [f"c{n}" for n in range(clients)]
    shares = [allocate(strategy, name, names, queues(4, "a", "b")) for name in names]
    assert sorted(queue for share in shares for queue in share) == queues(4, "a", "b")
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_popping_clients_get_every_broker_or_the_shares_of_their_neighbours() -> None:
    names = ["c0", "c1", "c2", "c3"]
    assert allocate_for_pop(AVERAGELY, "c0", names, queues(4, "a", "b"), 0) == [
        MessageQueue("T", "a", -1),
        MessageQueue("T", "b", -1),
    ]
    assert allocate_for_pop(AVERAGELY, "c3", names, queues(4), 1) == [
        MessageQueue("T", "a", 3),
        MessageQueue("T", "a", 0),
    ]
    many = [f"c{n}" for n in range(9)]
    assert allocate_for_pop(AVERAGELY, "c5", many, queues(4), 1) == [MessageQueue("T", "a", 1)]
    assert allocate_for_pop(AVERAGELY, "stranger", names, queues(4), 1) == []
    assert allocate("AVG", "stranger", names, queues(4)) == []


def test_records_in_memory_hold_back_no_revive_queue() -> None:
    floors = Floors()
    floors.know(0, 4)
    floors.hold(0, NOT_IN_LOG + 1)
    assert (floors.known(0), floors.settled(0)) == (4, 4)
    floors.hold(0, 2)
    assert floors.settled(0) == 1
    floors.release(0, 2)
    assert floors.settled(0) == 4
    floors.know(1, NOT_IN_LOG + 2)
    assert floors.known(1) == -1


def test_check_points_of_other_broker_sets_are_others() -> None:
    points = CheckPoints()
    own, foreign = entry(5), entry(5)
    foreign.foreign = "elsewhere"
    points.add(own)
    points.add(foreign)
    assert (points.get(own.key), points.get(own.key, "elsewhere")) == (own, foreign)
    assert points.get(own.key, "nowhere") is None
    points.remove(own)
    assert own.key not in points and points.get(own.key, "elsewhere") is foreign


def test_the_offset_of_a_group_stays_before_what_an_acting_master_hands_out() -> None:
    broker = make_broker()
    positions = Positions(broker, None)  # type: ignore[arg-type]
    positions.held = True
    key, offsets = ("T", "g", 0), broker.tables.offsets
    offsets.commit("g", "T", 0, 3)
    position = positions.move(key, 10)
    positions.commit(key, position, 10)
    assert (positions.get(key), offsets.query("g", "T", 0)) == (10, 3)
    positions.follow({key: 5})
    assert offsets.query("g", "T", 0) == 5
    positions.follow({key: 4})  # hidden for longer: never back
    assert offsets.query("g", "T", 0) == 5
    positions.follow({})
    assert (positions.get(key), offsets.query("g", "T", 0)) == (10, 10)


def test_a_pop_that_waits_for_long_keeps_none_of_those_behind_it() -> None:
    held: HeldPops[int] = HeldPops()
    held.hold("t", (), "g", 0, 1_000_000, -1)
    for number in range(5_000):
        held.hold("t", (), "g", 0, number, number)
        if number % 10:
            for each in held.expire(number):
                held.release(each)
    (line,) = held.lines_of("t", "g")
    assert len(line.waiting) <= 70
    assert [each.pop for each in held.all()] == [-1]
    first = line.first()
    assert first is not None and first.pop == -1
