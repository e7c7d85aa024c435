"""Who is connected: heartbeats add members, closing and silence remove them, and the others are told once."""

from __future__ import annotations

import pytest
from tests.unit.broker.fakes import JAVA, FakeConnection

from batonmq.broker.tables.consumers import ConsumerTable
from batonmq.broker.tables.producers import ProducerTable
from batonmq.protocol.bodies.clients import ConsumerData, MessageModel, SubscriptionData


def data(group: str = "g", *topics: str, version: int = 1, model: str = "CLUSTERING") -> ConsumerData:
    return ConsumerData(
        group_name=group,
        message_model=MessageModel(model),
        subscription_data_set=[
            SubscriptionData(topic=t, sub_string="*", sub_version=version) for t in topics
        ],
    )


class Table:
    """A consumer table that remembers which groups were told of a change."""

    def __init__(self) -> None:
        self.table = ConsumerTable()
        self.told: list[str] = []
        self.table.on_members_changed = self.told.append

    def beat(self, connection: FakeConnection, consumer: ConsumerData, now_ms: int = 0, **how: bool) -> bool:
        return self.table.register(
            consumer,
            connection,  # type: ignore[arg-type]
            f"id-{connection.peer}",
            language=JAVA,
            version=453,
            now_ms=now_ms,
            **how,
        )

    def told_since(self) -> list[str]:
        told, self.told[:] = list(self.told), []
        return told


@pytest.fixture
def consumers() -> Table:
    return Table()


def test_a_new_member_is_told_of_and_a_known_one_is_not(consumers: Table) -> None:
    first, second = FakeConnection("a:1"), FakeConnection("b:1")
    assert consumers.beat(first, data("g", "t"))
    assert not consumers.beat(first, data("g", "t"))
    assert consumers.beat(second, data("g", "t"))
    assert consumers.told == ["g", "g"]
    group = consumers.table.group("g")
    assert group is not None and group.client_ids == ["id-a:1", "id-b:1"]
    member = consumers.table.member("g", "id-b:1")
    assert member is not None and member.connection is second
    assert consumers.table.member("g", "nobody") is None and consumers.table.member("h", "x") is None


def test_topics_that_come_and_go_count_as_change_and_new_versions_do_not(consumers: Table) -> None:
    one = FakeConnection()
    consumers.beat(one, data("g", "t"))
    assert not consumers.beat(one, data("g", "t", version=2))
    assert consumers.beat(one, data("g", "t", "u"))
    assert consumers.beat(one, data("g", "u"))
    assert consumers.table.subscription("g", "t") is None
    assert consumers.table.groups_of("u") == {"g"} and consumers.table.groups_of("t") == set()


def test_an_older_version_does_not_replace_a_newer_one(consumers: Table) -> None:
    one = FakeConnection()
    consumers.beat(one, data("g", "t", version=5))
    consumers.beat(one, data("g", "t", version=4))
    found = consumers.table.subscription("g", "t")
    assert found is not None and found.sub_version == 5


def test_a_heartbeat_without_subscriptions_keeps_them(consumers: Table) -> None:
    one = FakeConnection()
    consumers.beat(one, data("g", "t"))
    assert not consumers.beat(one, data("g"), with_subscriptions=False)
    assert consumers.table.subscription("g", "t") is not None


@pytest.mark.parametrize(("model", "notify", "told"), [("BROADCASTING", True, 0), ("CLUSTERING", False, 0)])
def test_groups_that_do_not_rebalance_are_not_told(
    consumers: Table, model: str, notify: bool, told: int
) -> None:
    consumers.beat(FakeConnection(), data("g", "t", model=model), notify=notify)
    assert len(consumers.told) == told


def test_leaving(consumers: Table) -> None:
    first, second = FakeConnection("a:1"), FakeConnection("b:1")
    for connection in (first, second):
        consumers.beat(connection, data("g", "t"))
    consumers.told_since()
    assert consumers.table.unregister("g", first)  # type: ignore[arg-type]
    assert not consumers.table.unregister("g", first)  # type: ignore[arg-type]
    assert consumers.told_since() == ["g"]
    assert consumers.table.unregister("g", second)  # type: ignore[arg-type]
    assert consumers.told_since() == [], "nobody is left to be told"
    assert consumers.table.group("g") is None and consumers.table.subscriptions("g") == {}


def test_a_closed_connection_leaves_all_its_groups(consumers: Table) -> None:
    first, second = FakeConnection("a:1"), FakeConnection("b:1")
    for group in ("g", "h"):
        consumers.beat(first, data(group, "t"))
        consumers.beat(second, data(group, "t"))
    consumers.told_since()
    consumers.table.connection_closed(first)  # type: ignore[arg-type]
    assert sorted(consumers.told_since()) == ["g", "h"]
    assert consumers.table.connections("g") == [second]
    consumers.table.connection_closed(first)  # type: ignore[arg-type]
    assert consumers.told == []


def test_a_heartbeat_that_comes_after_its_connection_closed_is_ignored(consumers: Table) -> None:
    gone = FakeConnection()
    gone.close()
    assert not consumers.beat(gone, data("g", "t"))
    assert consumers.table.group("g") is None


def test_silent_members_are_dropped(consumers: Table) -> None:
    first, second = FakeConnection("a:1"), FakeConnection("b:1")
    consumers.beat(first, data("g", "t"), now_ms=0)
    consumers.beat(second, data("g", "t"), now_ms=60_000)
    assert consumers.table.drop_silent(120_000, 120_000) == []
    assert consumers.table.drop_silent(120_001, 120_000) == [first]
    assert consumers.table.connections("g") == [second]


def test_fingerprints_tell_when_clients_differ() -> None:
    table = ConsumerTable()
    assert [table.fingerprint_changed("g", f) for f in (1, 1, 2, 2)] == [False, False, True, False]


def test_subscriptions_of_pulls_are_remembered_for_a_while() -> None:
    table = ConsumerTable()
    table.remember("g", SubscriptionData(topic="t", sub_version=1_000))
    assert table.subscription("g", "t") is not None
    table.forget_old_subscriptions(2_000, 1_000)
    assert table.subscription("g", "t") is not None
    table.forget_old_subscriptions(2_001, 1_000)
    assert table.subscription("g", "t") is None


def test_producers() -> None:
    table = ProducerTable()
    first, second = FakeConnection("a:1"), FakeConnection("b:1")
    for now_ms, connection in ((0, first), (60_000, second)):
        table.register("p", connection, "id", language=JAVA, version=1, now_ms=now_ms)  # type: ignore[arg-type]
    members = table.members("p")
    assert members is not None and len(members) == 2
    asked = [table.any_member("p") for _ in range(3)]
    assert [m.connection for m in asked if m] == [first, second, first]
    assert table.drop_silent(120_001, 120_000) == [first]
    assert table.unregister("p", second) and not table.unregister("p", second)  # type: ignore[arg-type]
    assert table.members("p") is None and table.any_member("p") is None
