"""What a message carries: delays, keys of queues, copies of records; and recall handles."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from batonmq.client.filter import Sql, sql, subscription_data
from batonmq.client.message import Message
from batonmq.client.sharding import queue_of_key, siphash24
from batonmq.protocol.bodies.common import MessageQueue
from batonmq.protocol.errors import MQError
from batonmq.protocol.message.properties import decode_properties
from batonmq.protocol.message.record import MessageExt

TIMES = [
    ({"delay": 2.5}, {"TIMER_DELAY_MS": "2500"}),
    ({"delay": timedelta(minutes=1)}, {"TIMER_DELAY_MS": "60000"}),
    ({"delay": 0}, {"TIMER_DELAY_MS": "0"}),
    ({"deliver_at": 1_795_504_172.25}, {"TIMER_DELIVER_MS": "1795504172250"}),
    ({"deliver_at": datetime(2026, 11, 24, tzinfo=UTC)}, {"TIMER_DELIVER_MS": "1795478400000"}),
    ({"delay_level": 3}, {"DELAY": "3"}),
    ({"priority": 7}, {"_SYS_MSG_PRIORITY_": "7"}),
    ({"sharding_key": "a"}, {"__SHARDINGKEY": "a"}),
]


@pytest.mark.parametrize(("options", "properties"), TIMES)
def test_the_properties_of_a_message(options: dict[str, Any], properties: dict[str, str]) -> None:
    message = Message("t", b"x", **options)
    message.check(100)
    assert decode_properties(message.encoded_properties()) == {"WAIT": "true", **properties}
    assert message.delayed is not ("priority" in options or "sharding_key" in options)


@pytest.mark.parametrize(
    "options",
    [
        {"delay": -1},
        {"delay": float("nan")},
        {"delay": float("inf")},
        {"delay": 2**60},
        {"delay": timedelta(days=-1)},
        {"deliver_at": -5},
        {"deliver_at": 1_795_504_172_000_000},
        {"deliver_at": float("nan")},
        {"delay": 1, "deliver_at": 1},
        {"delay": 1, "delay_level": 1},
    ],
)
def test_times_that_cannot_be_meant_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"out of range|only one"):
        Message("t", b"x", **options)


@pytest.mark.parametrize("options", [{"sharding_key": ""}, {"priority": -1}, {"priority": 2**31}])
def test_a_message_that_no_broker_would_take(options: dict[str, Any]) -> None:
    with pytest.raises(MQError, match=r"sharding key|priority"):
        Message("t", b"x", **options).check(100)


def test_a_record_is_sent_again_without_what_its_way_left_on_it() -> None:
    record = MessageExt(
        topic="%DLQ%g",
        queue_id=0,
        queue_offset=1,
        physical_offset=2,
        body=b"x",
        flag=9,
        properties={
            "TAGS": "a",
            "KEYS": "k1 k2",
            "UNIQ_KEY": "U",
            "WAIT": "true",
            "RETRY_TOPIC": "orders",
            "region": "eu",
            "traceparent": "00-1-2-01",
            "__SHARDINGKEY": "s",
            "POP_CK": "1 2",
            "TIMER_OUT_MS": "5",
            "DLQ_ORIGIN_MESSAGE_ID": "U",
            "ORIGIN_GROUP": "g",
            "TTL": "3000",
        },
    )
    message = Message.from_record(record)
    assert (message.topic, message.body, message.tags, message.keys) == ("orders", b"x", "a", ("k1", "k2"))
    assert (message.sharding_key, message.flag, message.unique_id) == ("s", 9, None)
    assert message.properties == {"region": "eu", "traceparent": "00-1-2-01"}
    message.encoded_properties()
    assert Message.from_record(record, "elsewhere").topic == "elsewhere"
    record.properties["DLQ_ORIGIN_TOPIC"] = "first"
    assert Message.from_record(record).topic == "first"


def test_siphash_as_its_authors_compute_it() -> None:
    assert siphash24(bytes(range(15))) == 0xA129CA6149BE45E5  # the paper's example, with its key
    assert siphash24(b"") == 0x726FDB47DD0E0E31


def test_keys_stay_with_their_queue_and_spread() -> None:
    queues = [MessageQueue("t", name, number) for number in range(4) for name in "ba"]
    chosen = {f"key{number}": queue_of_key(queues, f"key{number}") for number in range(800)}
    assert all(queue_of_key(sorted(queues), key) == queue for key, queue in chosen.items())
    assert min(Counter(chosen.values()).values()) > 60


def test_expressions_over_properties() -> None:
    data = subscription_data("t", sql(" a > 3 "), 7)
    assert (data.sub_string, data.expression_type, data.tags_set) == ("a > 3", "SQL92", [])
    assert subscription_data("t", "a || b", 7).tags_set == ["a", "b"]
    with pytest.raises(ValueError, match=r"%LMQ%a is a light queue, .* read it with QueueReader"):
        subscription_data("%LMQ%a", "*", 7)
    assert sql("x") == Sql("x")
    with pytest.raises(ValueError, match="empty"):
        sql("  ")
