"""Times of delivery: rounding, limits, rolling, and the way of a message to the timer topic and back."""

from __future__ import annotations

import pytest

from batonmq.broker.timer.core import (
    Wheel,
    deliver_at_ms,
    delivered,
    is_timed,
    parking_slot,
    parse_long,
    precision_of,
    rolled,
    slot_of,
    to_timer_topic,
    wheel_of,
    write_time,
)
from batonmq.broker.timer.layout import SLOTS, Unit, decode_unit
from batonmq.protocol.message.errors import MessageFormatError
from batonmq.protocol.message.properties import decode_properties, encode_properties
from batonmq.protocol.message.record import MessageExt, StoredMessage, decode_record, encode_record
from batonmq.protocol.names import TIMER_TOPIC

NOW = 1_700_000_000_500
WHEEL = Wheel(1_000, 172_800)
DAY_MS = 86_400_000


def test_precisions_are_those_of_rocketmq() -> None:
    asked = (1, 100, 199, 200, 499, 500, 999, 1_000, 60_000)
    assert [precision_of(ms) for ms in asked] == [100, 100, 100, 200, 200, 500, 500, 1_000, 1_000]


def test_a_roll_window_outside_the_wheel_is_the_wheel() -> None:
    most = SLOTS // 2 - 60
    assert [wheel_of(1_000, slots, SLOTS).window_slots for slots in (0, 1, 2, most, most + 1)] == [
        most,
        most,
        2,
        most,
        most,
    ]


@pytest.mark.parametrize("text", ["", "x", "1.5", "1_000", " 1", "0x1", "9223372036854775808", "\u0661"])
def test_text_that_java_takes_for_no_number(text: str) -> None:
    with pytest.raises(ValueError, match="is not a number"):
        parse_long(text)


def test_numbers_as_java_reads_them() -> None:
    assert [parse_long(text) for text in ("+7", "-7", "007", "9223372036854775807")] == [
        7,
        -7,
        7,
        (1 << 63) - 1,
    ]


def test_seconds_win_over_milliseconds_and_both_over_a_time() -> None:
    every = {"TIMER_DELAY_SEC": "2", "TIMER_DELAY_MS": "30", "TIMER_DELIVER_MS": "77"}
    assert deliver_at_ms(every, NOW) == NOW + 2_000
    del every["TIMER_DELAY_SEC"]
    assert deliver_at_ms(every, NOW) == NOW + 30
    del every["TIMER_DELAY_MS"]
    assert deliver_at_ms(every, NOW) == 77


def test_messages_of_the_wheel_are_not_timed_again() -> None:
    assert is_timed("T", {"TIMER_DELAY_MS": "1"})
    assert not is_timed("T", {"TIMER_DELAY_MS": "1", "TIMER_OUT_MS": "1"})
    assert not is_timed(TIMER_TOPIC, {"TIMER_DELAY_MS": "1"})
    assert not is_timed("T", {"TIMER_OUT_MS": "1"})


@pytest.mark.parametrize("precision", [100, 200, 500, 1_000])
def test_a_slot_is_due_at_the_time_of_delivery_or_up_to_a_step_later(precision: int) -> None:
    for deliver_ms in range(NOW, NOW + 2_100, 7):
        due_ms = slot_of(deliver_ms, precision) + precision
        assert deliver_ms <= due_ms < deliver_ms + precision
        assert due_ms % precision == 0


def test_the_slots_that_rocketmq_chose() -> None:
    # sent at ...1207 with 1500 ms, and for ...3201
    assert slot_of(1_795_504_551_207 + 1_500, 1_000) == 1_795_504_552_000
    assert slot_of(1_795_504_553_201, 1_000) == 1_795_504_553_000
    assert slot_of(1_795_504_553_000, 1_000) == 1_795_504_552_000


def test_a_message_within_the_window_waits_in_its_slot() -> None:
    base = WHEEL.floor(NOW)
    assert parking_slot(base + 2 * DAY_MS - 1_000, NOW, WHEEL) == (base + 2 * DAY_MS - 1_000, False)


def test_a_message_beyond_the_window_is_rolled() -> None:
    base = WHEEL.floor(NOW)
    # A little beyond: in the middle, so that the second wait is not too short.
    assert parking_slot(base + 2 * DAY_MS, NOW, WHEEL) == (base + DAY_MS, True)
    assert parking_slot(base + 2 * DAY_MS + 57_599_000, NOW, WHEEL) == (base + DAY_MS, True)
    # Far beyond: as RocketMQ parked a message of 250 000 s.
    assert parking_slot(1_795_754_551_000, 1_795_504_551_243, WHEEL) == (1_795_677_351_000, True)


@pytest.mark.parametrize("out_ms", [-(1 << 63), -1, 0, 1, 999, 86_400_000, NOW - 40 * DAY_MS, (1 << 63) - 1])
def test_a_hostile_time_has_a_place_in_the_wheel_and_a_unit(out_ms: int) -> None:
    slot_ms, roll = parking_slot(out_ms, NOW, WHEEL)
    assert slot_ms % 1_000 == 0
    assert 1_000 <= slot_ms <= NOW + 2 * DAY_MS
    written_ms = write_time(NOW, slot_ms, WHEEL)
    assert written_ms <= NOW and written_ms % 1_000 == 0
    unit = decode_unit(Unit(-1, 1, written_ms, slot_ms, 0, 100, 0).encode())
    assert unit is not None and unit.slot_ms == slot_ms
    assert roll == (out_ms > NOW)


def test_a_time_that_has_passed_stays_as_it_is() -> None:
    """Whatever the store time: it is the clock's, or what it was before the clock was set back."""
    out_ms = WHEEL.floor(NOW) - 5_000
    for stored_ms in (NOW, NOW + 3 * DAY_MS, NOW + 400 * DAY_MS):
        assert parking_slot(out_ms, stored_ms, WHEEL) == (out_ms, False)


def stored(message: StoredMessage) -> MessageExt:
    return decode_record(
        encode_record(message, queue_offset=4, physical_offset=0, store_timestamp=NOW), inflate=False
    )


def timed(**properties: str) -> StoredMessage:
    return StoredMessage(
        topic="T",
        queue_id=3,
        body=b"body",
        flag=9,
        properties=encode_properties(properties),
        reconsume_times=2,
    )


def test_a_message_survives_the_timer_topic() -> None:
    sent = timed(UNIQ_KEY="k", TIMER_DELAY_MS="5000", own="x")
    waiting = to_timer_topic(sent, decode_properties(sent.properties), 1_700_000_005_000)
    assert (waiting.topic, waiting.queue_id) == (TIMER_TOPIC, 0)
    back = delivered(stored(waiting), 1_700_000_000_000, 1_700_000_006_001)
    assert back is not None
    assert (back.topic, back.queue_id, back.body, back.flag, back.reconsume_times) == ("T", 3, b"body", 9, 2)
    assert decode_properties(back.properties) == {
        "UNIQ_KEY": "k",
        "TIMER_DELAY_MS": "5000",
        "own": "x",
        "TIMER_OUT_MS": "1700000005000",
        "REAL_TOPIC": "T",
        "REAL_QID": "3",
        "TIMER_ENQUEUE_MS": "1700000000000",
        "TIMER_DEQUEUE_MS": "1700000006001",
    }


def test_a_rolled_message_counts_its_rolls() -> None:
    record = stored(to_timer_topic(timed(), {}, NOW))
    for expected in ("1", "2", "3"):
        message = rolled(record, 1, 2)
        assert (message.topic, message.queue_id) == (TIMER_TOPIC, 0)
        record = stored(message)
        assert record.properties["TIMER_ROLL_TIMES"] == expected
    record.properties["TIMER_ROLL_TIMES"] = "many"
    assert stored(rolled(record, 1, 2)).properties["TIMER_ROLL_TIMES"] == "1"


@pytest.mark.parametrize(
    "properties",
    [
        {},
        {"REAL_TOPIC": "T"},
        {"REAL_TOPIC": "T", "REAL_QID": "-1"},
        {"REAL_TOPIC": "T", "REAL_QID": "9999999999"},
        {"REAL_TOPIC": "../../etc", "REAL_QID": "0"},
        {"REAL_TOPIC": "RMQ_SYS_TRANS_OP_HALF_TOPIC", "REAL_QID": "0"},
        {"REAL_TOPIC": TIMER_TOPIC, "REAL_QID": "0"},
    ],
)
def test_a_record_that_names_no_topic_for_clients_is_not_delivered(properties: dict[str, str]) -> None:
    message = StoredMessage(
        topic=TIMER_TOPIC, queue_id=0, body=b"x", properties=encode_properties(properties)
    )
    assert delivered(stored(message), 1, 2) is None


def test_properties_that_leave_no_room_for_the_delivery_are_refused() -> None:
    sent = timed(own="x" * 32_600)
    with pytest.raises(MessageFormatError, match="leave no room"):
        to_timer_topic(sent, decode_properties(sent.properties), NOW)
    fits = timed(own="x" * 32_500)
    waiting = to_timer_topic(fits, decode_properties(fits.properties), NOW)
    assert delivered(stored(waiting), (1 << 63) - 1, NOW) is not None
