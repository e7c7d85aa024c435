"""Delay levels, and the conversion of messages to and from the delay topic."""

import pytest

from batonmq.broker.config import BrokerConfig, parse_delay_levels
from batonmq.broker.delay.core import (
    deliver_at_ms,
    from_schedule_topic,
    to_schedule_topic,
)
from batonmq.broker.messages.filters import filter_of, subscription_of
from batonmq.common.config import ConfigError
from batonmq.protocol.java_hash import java_hash
from batonmq.protocol.message.properties import encode_properties
from batonmq.protocol.message.record import StoredMessage, decode_record, encode_record


def test_default_levels_are_rocketmqs() -> None:
    levels = parse_delay_levels(BrokerConfig().message_delay_level)
    assert levels[:4] == (1_000, 5_000, 10_000, 30_000)
    assert (len(levels), levels[-1]) == (18, 7_200_000)


@pytest.mark.parametrize("text", ["", "1", "s", "1x", "1s 5", "-1s", "1.5s"])
def test_invalid_levels(text: str) -> None:
    with pytest.raises(ConfigError, match="messageDelayLevel"):
        parse_delay_levels(text)


def test_a_message_survives_the_delay_topic_unchanged() -> None:
    sent = StoredMessage(
        topic="T",
        queue_id=3,
        body=b"body",
        flag=9,
        born_timestamp=5,
        reconsume_times=2,
        properties=encode_properties({"TAGS": "a", "DELAY": "2", "TIMER_DELAY_SEC": "9"}),
    )
    waiting = to_schedule_topic(sent, 40, 18)
    assert (waiting.topic, waiting.queue_id) == ("SCHEDULE_TOPIC_XXXX", 17)
    record = decode_record(encode_record(waiting, queue_offset=0, physical_offset=0, store_timestamp=1))
    back = from_schedule_topic(record)
    assert back is not None
    assert (back.topic, back.queue_id, back.body, back.flag, back.reconsume_times) == ("T", 3, b"body", 9, 2)
    assert b"DELAY" not in back.properties and b"TAGS\x01a\x02" in back.properties


def test_a_record_without_its_topic_is_not_delivered() -> None:
    bare = StoredMessage(topic="SCHEDULE_TOPIC_XXXX", queue_id=0, body=b"x")
    record = decode_record(encode_record(bare, queue_offset=0, physical_offset=0, store_timestamp=1))
    assert from_schedule_topic(record) is None


def test_a_clock_that_was_set_back_does_not_delay_messages() -> None:
    assert deliver_at_ms(store_timestamp=1_000, delay_ms=50, now_ms=1_010) == 1_050
    assert deliver_at_ms(store_timestamp=9_000, delay_ms=50, now_ms=1_000) == 1_050


def test_tag_filter() -> None:
    assert filter_of(subscription_of("T", "*", None, 1)) is None
    by_tag = filter_of(subscription_of("T", " a || b||a", "TAG", 1))
    assert by_tag is not None and by_tag.by_code is not None and by_tag.by_properties is None
    assert [by_tag.by_code(java_hash(tag)) for tag in ("a", "b", "c")] == [True, True, False]
    with pytest.raises(ValueError, match="no tag"):
        subscription_of("T", " || ", "TAG", 1)
