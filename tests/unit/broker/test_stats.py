"""Rates are computed from samples; a window drops samples older than itself."""

from __future__ import annotations

import pytest

from batonmq.broker.stats import (
    GROUP_GET_NUMS,
    SNDBCK_PUT_NUMS,
    TOPIC_PUT_NUMS,
    BrokerStats,
    Snapshot,
)
from batonmq.protocol.message.record import StoredMessage
from batonmq.protocol.names import SCHEDULE_TOPIC
from batonmq.store.results import PutResult, PutStatus

DAY = 86_400_000


def test_without_two_samples_there_is_no_rate() -> None:
    stats = BrokerStats(now_ms=0)
    stats.count_put("t", 5, 500)
    assert stats.put_rate("t") == 0.0
    stats.sample(10_000)
    assert stats.find(TOPIC_PUT_NUMS, "t").minute.snapshot() == Snapshot()  # type: ignore[union-attr]
    assert stats.put_messages.minute.snapshot() == Snapshot(5, 0.5, 5.0)


def test_the_minute_window_holds_one_minute() -> None:
    stats = BrokerStats(now_ms=0)
    for second in range(0, 130, 10):
        stats.count_put("t", 20, 2_000)
        stats.count_put("t", 10, 1_000)
        stats.count_get("g", "t", 5, 500)
        stats.sample(second * 1000)
    counter = stats.find(TOPIC_PUT_NUMS, "t")
    assert counter is not None
    assert counter.total == 390
    assert counter.minute.snapshot() == Snapshot(180, 3.0, 15.0)
    assert counter.hour.snapshot() == Snapshot()
    assert stats.put_rate("t") == 3.0
    assert stats.get_rate("g", "t") == 0.5
    assert stats.get_rate("g", "other") == 0.0


def test_rates_continue_after_the_clock_was_set_back() -> None:
    stats = BrokerStats(now_ms=DAY)
    for second in range(10, 60, 10):
        stats.count_put("t", 10, 1_000)
        stats.sample(DAY + second * 1_000)
    for second in range(0, 40, 10):
        stats.count_put("t", 20, 1_000)
        stats.sample(second * 1_000)
    assert stats.put_rate("t") == 2.0


def test_samples_too_close_together_are_ignored() -> None:
    stats = BrokerStats(now_ms=0)
    stats.count_put("t", 1, 1)
    stats.sample(10_000)
    stats.count_put("t", 1, 1)
    stats.sample(10_001)
    assert stats.put_messages.minute.snapshot().total == 1


def test_empty_pulls_are_counted_separately() -> None:
    stats = BrokerStats(now_ms=0)
    stats.count_get("g", "t", 0, 0)
    stats.count_get("g", "t", 3, 300)
    assert (stats.get_messages.total, stats.found_pulls.total, stats.missed_pulls.total) == (3, 1, 1)


@pytest.mark.parametrize("sample_every_ms", [10_000, 3_600_000])
def test_days(sample_every_ms: int) -> None:
    stats = BrokerStats(now_ms=5 * DAY + 1)
    stats.count_put("t", 10, 1)
    stats.sample(6 * DAY)
    stats.count_put("t", 5, 1)
    stats.count_get("g", "t", 4, 1)
    stats.sample(7 * DAY + sample_every_ms)
    stats.count_put("t", 1, 1)
    assert (stats.put_by_yesterday, stats.put_by_today, stats.put_messages.total) == (10, 15, 16)
    assert (stats.get_by_yesterday, stats.get_by_today, stats.get_messages.total) == (0, 4, 4)


def test_messages_of_system_topics_are_not_among_the_days_messages() -> None:
    """As in RocketMQ: a delayed message would count twice, probes would count at all."""
    stats = BrokerStats(now_ms=5 * DAY + 1, own_topics=("cluster", "broker-a"))
    for topic in ("t", SCHEDULE_TOPIC, "cluster", "broker-a"):
        stats.count_put(topic, 1, 1)
        stats.count_get("g", topic, 2, 1)
    assert (stats.users_put, stats.users_get) == (1, 2)
    assert (stats.put_messages.total, stats.get_messages.total) == (4, 8)
    stats.sample(6 * DAY)
    assert (stats.put_by_today, stats.get_by_today) == (1, 2)


def test_counters_of_a_deleted_topic_or_group_are_dropped() -> None:
    stats = BrokerStats(now_ms=0)
    stats.count_put("t", 1, 1)
    stats.count_put("t2", 1, 1)
    for group in ("g", "h"):
        stats.count_get(group, "t", 1, 1)
        stats.count_get(group, "t2", 1, 1)
    stats.count_send_back("g", "t2")
    stats.forget_topic("t")
    assert stats.find(TOPIC_PUT_NUMS, "t") is None
    assert stats.find(GROUP_GET_NUMS, "t@h") is None
    assert stats.find(TOPIC_PUT_NUMS, "t2") is not None
    stats.forget_group("g")
    assert stats.find(GROUP_GET_NUMS, "t2@g") is None
    assert stats.find(SNDBCK_PUT_NUMS, "t2@g") is None
    assert stats.find(GROUP_GET_NUMS, "t2@h") is not None


def test_an_append_counts_stored_messages_by_topic() -> None:
    stats = BrokerStats(now_ms=0)
    messages = [StoredMessage(topic=topic, queue_id=0, body=b"") for topic in ("t", "u", "t", "t")]
    ok = PutStatus.PUT_OK
    stats.count_append(
        messages,
        [
            PutResult(ok, 0, 0, 100),
            PutResult(ok, 100, 0, 50),
            PutResult(PutStatus.MESSAGE_ILLEGAL),
            PutResult(ok, 150, 1, 200, 0, (150, 250)),
        ],
    )
    counter = stats.find(TOPIC_PUT_NUMS, "t")
    assert counter is not None and counter.total == 3
    assert (stats.put_messages.total, stats.put_bytes.total) == (4, 350)


@pytest.mark.parametrize(
    ("merge", "key"), [(True, "%LMQ%@%LMQ%"), (False, "%LMQ%a@%LMQ%g")], ids=["merged", "apart"]
)
def test_light_queues_are_counted_together_or_apart(merge: bool, key: str) -> None:
    stats = BrokerStats(now_ms=0, merge_light=merge)
    for now_ms in (10_000, 60_000):
        stats.count_get("%LMQ%g", "%LMQ%a", 3, 1)
        stats.count_get("%LMQ%h", "%LMQ%b", 4, 1)
        stats.sample(now_ms)
    stats.count_get("g", "t", 5, 1)
    counter = stats.find(GROUP_GET_NUMS, key)
    assert counter is not None and counter.total == (14 if merge else 6)
    assert stats.get_rate("%LMQ%g", "%LMQ%a") == (7 if merge else 3) / 50
    plain = stats.find(GROUP_GET_NUMS, "t@g")
    assert plain is not None and plain.total == 5
