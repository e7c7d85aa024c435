"""The SQL92 filters of groups: registration, expiry, file, bounds."""

from __future__ import annotations

import pytest
from tests.unit.broker.fakes import FakeConnection

from batonmq.broker.tables import filters
from batonmq.broker.tables.consumers import ConsumerTable
from batonmq.broker.tables.filters import FilterTable
from batonmq.protocol.bodies.clients import ConsumerData, SubscriptionData


class Clock:
    def __init__(self) -> None:
        self.ms = 1000

    def __call__(self) -> int:
        return self.ms


def sql(expression: str | None, version: int = 1, topic: str = "T", kind: str = "SQL92") -> SubscriptionData:
    return SubscriptionData(topic, expression, sub_version=version, expression_type=kind)


def expression(table: FilterTable, group: str = "g", topic: str = "T") -> str | None:
    found = table.get(topic, group)
    return None if found is None else found.data.expression


def test_the_newest_version_of_a_filter_counts() -> None:
    table = FilterTable(Clock())
    table.register("g", [sql("a = 1", 5), SubscriptionData("Tags", "x", sub_version=5)])
    assert (expression(table), len(table)) == ("a = 1", 1)
    for older in (4, 5):
        table.register("g", [sql("a = 2", older)])
        assert expression(table) == "a = 1"
    table.register("g", [sql("a = 2", 6)])
    assert expression(table) == "a = 2"
    found = table.get("T", "g")
    assert found is not None and found.matches(b"a\x012\x02") and not found.matches(b"a\x011\x02")


def test_changes_are_announced_and_repetitions_are_not() -> None:
    table = FilterTable(Clock())
    changes: list[None] = []
    table.on_change = lambda: changes.append(None)
    table.register("g", [sql("a = 1", 1)])
    table.register("g", [sql("a = 1", 1)])
    assert len(changes) == 1
    table.register("g", [sql("a = 1", 2)])
    assert len(changes) == 2


@pytest.mark.parametrize(
    ("text", "kind"), [("a =", "SQL92"), ("", "SQL92"), (None, "SQL92"), ("a = 1", "XPATH")]
)
def test_an_invalid_expression_removes_the_filter(
    text: str | None, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    table = FilterTable(Clock())
    table.register("g", [sql("a = 1", 1)])
    for _ in range(3):
        table.register("g", [sql(text, 2, kind=kind)])
    assert expression(table) is None and len(table) == 0
    assert len([r for r in caplog.records if "refused" in r.getMessage()]) == 1


def test_the_log_does_not_repeat_a_long_expression_type(caplog: pytest.LogCaptureFixture) -> None:
    FilterTable(Clock()).register("g", [sql("a = 1", kind="X" * 100_000)])
    assert [len(record.getMessage()) < 200 for record in caplog.records] == [True]


def test_unused_filters_are_forgotten_after_a_while() -> None:
    clock = Clock()
    table, consumers, connection = FilterTable(clock), ConsumerTable(), FakeConnection()
    subscriptions = [sql("a = 1"), sql("a = 1", topic="U")]
    consumers.register(
        ConsumerData("g", subscription_data_set=subscriptions),
        connection,
        "c",
        language=0,
        version=0,
        now_ms=0,  # type: ignore[arg-type]
    )
    table.register("g", subscriptions)
    for _ in range(3):
        clock.ms += 10_000
        table.sweep(consumers, 5_000)
    assert len(table) == 2
    consumers.register(
        ConsumerData("g", subscription_data_set=subscriptions[:1]),
        connection,
        "c",
        language=0,
        version=0,
        now_ms=0,  # type: ignore[arg-type]
    )
    table.sweep(consumers, 5_000)
    clock.ms += 4_999
    table.sweep(consumers, 5_000)
    assert len(table) == 2
    clock.ms += 1
    table.sweep(consumers, 5_000)
    assert len(table) == 1 and expression(table) == "a = 1"


def test_a_filter_in_use_again_is_kept() -> None:
    clock = Clock()
    table, consumers = FilterTable(clock), ConsumerTable()
    table.register("g", [sql("a = 1")])
    table.sweep(consumers, 5_000)
    found = table.get("T", "g")
    assert found is not None and found.dead
    table.register("g", [sql("a = 1")])
    assert not found.dead


def test_the_file_is_rocketmqs() -> None:
    table = FilterTable(Clock())
    table.restore(
        b'{"filterDataByTopic":{"T":{"groupFilterData":{"g":{"bloomFilterData":{"bitNum":112,"bitPos":[3,57,9]},'
        b'"bornTime":1763000000000,"clientVersion":7,"consumerGroup":"g","dead":false,"deadTime":0,'
        b'"expression":"a > 5","expressionType":"SQL92","topic":"T"},"h":{"consumerGroup":"h","topic":"T",'
        b'"expression":"a >","expressionType":"SQL92"}},"topic":"T"}}}'
    )
    found = table.get("T", "g")
    assert found is not None and found.matches(b"a\x016\x02") and len(table) == 1
    again = FilterTable(Clock())
    again.restore(table.encode())
    other = again.get("T", "g")
    assert other is not None and other.data == found.data
    with pytest.raises(ValueError):
        again.restore(b"[1]")


def test_one_heartbeat_compiles_a_bounded_amount_and_the_next_continues() -> None:
    table = FilterTable(Clock())
    first, second = sql("a = 'xxxxxxxxxx'", topic="T"), sql("b = 'xxxxxxxxxx'", topic="U")
    left = table.register("g", [first, second], budget=20)
    assert left == 4 and expression(table) is not None and expression(table, topic="U") is None
    assert table.register("g", [first, second], budget=20) == 4
    assert expression(table, topic="U") is not None


def test_the_table_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filters, "MAX_FILTERS", 3)
    monkeypatch.setattr(filters, "MAX_CHARACTERS", 60)
    clock = Clock()
    table = FilterTable(clock)
    for group in "abc":
        clock.ms += 1
        table.register(group, [sql("a = 1")])
    table.register("d", [sql("a = 1")])
    assert expression(table, "d") is None, "all are in use"
    table.sweep(ConsumerTable(), 1 << 40)
    table.register("b", [sql("a = 1")])
    table.register("d", [sql("a = 1")])
    assert [group for group in "abcd" if expression(table, group)] == ["b", "c", "d"]
    table.register("d", [sql("a = '" + "x" * 55 + "'", 2)])
    assert expression(table, "d") is None and len(table) <= 2, "too long"
    for group in "bc":
        table.register(group, [sql("a = 'yyyyyyyyyyyyyyyyyyyy'", 5)])
    assert expression(table, "c") is not None


def test_a_filter_for_what_cannot_be_a_topic_is_not_kept() -> None:
    """The limits count filters and the characters of expressions, not those of names."""
    table = FilterTable(Clock())
    assert table.register("g", [sql("a = 1", topic="T" * 1_000_000), sql("a =", topic="T" * 256)]) > 0
    assert len(table) == 0 and len(table.encode()) < 100 and not table._refused
