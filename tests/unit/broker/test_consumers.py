"""Connected clients: heartbeats add members, closing and silence remove them, others are notified once."""

from __future__ import annotations

import pytest
from tests.unit.broker.fakes import JAVA, FakeConnection

from batonmq.broker.tables import consumers as consumers_module
from batonmq.broker.tables.consumers import ConsumerTable, NoRoom
from batonmq.broker.tables.producers import ProducerTable
from batonmq.protocol.bodies.clients import ConsumerData, ConsumeType, MessageModel, SubscriptionData


def data(group: str = "g", *topics: str, version: int = 1, model: str = "CLUSTERING") -> ConsumerData:
    return ConsumerData(
        group_name=group,
        message_model=MessageModel(model),
        subscription_data_set=[
            SubscriptionData(topic=t, sub_string="*", sub_version=version) for t in topics
        ],
    )


class Table:
    """A consumer table that records which groups were notified of a change."""

    def __init__(self) -> None:
        self.table = ConsumerTable()
        self.notified: list[str] = []
        self.table.on_members_changed = self.notified.append

    def heartbeat(
        self, connection: FakeConnection, consumer: ConsumerData, now_ms: int = 0, **how: bool
    ) -> bool:
        return self.table.register(
            consumer,
            connection,  # type: ignore[arg-type]
            f"id-{connection.peer}",
            language=JAVA,
            version=453,
            now_ms=now_ms,
            **how,
        )

    def take_notified(self) -> list[str]:
        notified, self.notified[:] = list(self.notified), []
        return notified


@pytest.fixture
def consumers() -> Table:
    return Table()


def test_members_are_notified_of_a_new_member_and_not_of_a_known_one(consumers: Table) -> None:
    first, second = FakeConnection("a:1"), FakeConnection("b:1")
    assert consumers.heartbeat(first, data("g", "t"))
    assert not consumers.heartbeat(first, data("g", "t"))
    assert consumers.heartbeat(second, data("g", "t"))
    assert consumers.notified == ["g", "g"]
    group = consumers.table.group("g")
    assert group is not None and group.client_ids == ["id-a:1", "id-b:1"]
    member = consumers.table.member("g", "id-b:1")
    assert member is not None and member.connection is second
    assert consumers.table.member("g", "nobody") is None and consumers.table.member("h", "x") is None


def test_added_and_removed_topics_are_a_change_and_new_versions_are_not(consumers: Table) -> None:
    one = FakeConnection()
    consumers.heartbeat(one, data("g", "t"))
    assert not consumers.heartbeat(one, data("g", "t", version=2))
    assert consumers.heartbeat(one, data("g", "t", "u"))
    assert consumers.heartbeat(one, data("g", "u"))
    assert consumers.table.subscription("g", "t") is None
    assert consumers.table.groups_of("u") == {"g"} and consumers.table.groups_of("t") == set()


def test_an_older_version_does_not_replace_a_newer_one(consumers: Table) -> None:
    one = FakeConnection()
    consumers.heartbeat(one, data("g", "t", version=5))
    consumers.heartbeat(one, data("g", "t", version=4))
    found = consumers.table.subscription("g", "t")
    assert found is not None and found.sub_version == 5


def test_a_heartbeat_without_subscriptions_keeps_them(consumers: Table) -> None:
    one = FakeConnection()
    consumers.heartbeat(one, data("g", "t"))
    assert not consumers.heartbeat(one, data("g"), with_subscriptions=False)
    assert consumers.table.subscription("g", "t") is not None


@pytest.mark.parametrize(("model", "notify", "count"), [("BROADCASTING", True, 0), ("CLUSTERING", False, 0)])
def test_groups_that_do_not_rebalance_are_not_notified(
    consumers: Table, model: str, notify: bool, count: int
) -> None:
    consumers.heartbeat(FakeConnection(), data("g", "t", model=model), notify=notify)
    assert len(consumers.notified) == count


def test_leaving(consumers: Table) -> None:
    first, second = FakeConnection("a:1"), FakeConnection("b:1")
    for connection in (first, second):
        consumers.heartbeat(connection, data("g", "t"))
    consumers.take_notified()
    assert consumers.table.unregister("g", first)  # type: ignore[arg-type]
    assert not consumers.table.unregister("g", first)  # type: ignore[arg-type]
    assert consumers.take_notified() == ["g"]
    assert consumers.table.unregister("g", second)  # type: ignore[arg-type]
    assert consumers.take_notified() == [], "no member is left to be notified"
    assert consumers.table.group("g") is None and consumers.table.subscriptions("g") == {}


def test_a_closed_connection_leaves_all_its_groups(consumers: Table) -> None:
    first, second = FakeConnection("a:1"), FakeConnection("b:1")
    for group in ("g", "h"):
        consumers.heartbeat(first, data(group, "t"))
        consumers.heartbeat(second, data(group, "t"))
    consumers.take_notified()
    consumers.table.connection_closed(first)  # type: ignore[arg-type]
    assert sorted(consumers.take_notified()) == ["g", "h"]
    assert consumers.table.connections("g") == [second]
    consumers.table.connection_closed(first)  # type: ignore[arg-type]
    assert consumers.notified == []


def test_a_heartbeat_after_its_connection_closed_is_ignored(consumers: Table) -> None:
    gone = FakeConnection()
    gone.close()
    assert not consumers.heartbeat(gone, data("g", "t"))
    assert consumers.table.group("g") is None


def test_silent_members_are_dropped(consumers: Table) -> None:
    first, second = FakeConnection("a:1"), FakeConnection("b:1")
    consumers.heartbeat(first, data("g", "t"), now_ms=0)
    consumers.heartbeat(second, data("g", "t"), now_ms=60_000)
    assert consumers.table.drop_silent(120_000, 120_000) == []
    assert consumers.table.drop_silent(120_001, 120_000) == [first]
    assert consumers.table.connections("g") == [second]


def test_fingerprints_show_different_subscriptions() -> None:
    table = ConsumerTable()
    assert [table.fingerprint_changed("g", f) for f in (1, 1, 2, 2)] == [False, False, True, False]


def test_subscriptions_of_pulls_are_kept_for_a_while() -> None:
    table = ConsumerTable()
    table.remember("g", SubscriptionData(topic="t", sub_version=1_000), ConsumeType.POP)
    assert table.subscription("g", "t") is not None
    table.forget_old_subscriptions(2_000, 1_000)
    assert table.subscription("g", "t") is not None
    assert [(group.name, group.consume_type) for group in table.consuming()] == [("g", ConsumeType.POP)]
    table.forget_old_subscriptions(2_001, 1_000)
    assert table.subscription("g", "t") is None
    assert not table.consuming()


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


def test_no_other_user_takes_over_the_replies_of_a_connected_client() -> None:
    table = ProducerTable()
    first, second, third, fourth = (FakeConnection(f"{name}:1") for name in "abcd")

    def register(connection: FakeConnection, user: str | None) -> None:
        table.register("p", connection, "id", language=JAVA, version=1, now_ms=0, user=user)  # type: ignore[arg-type]

    register(first, "alice")
    for user in ("bob", None):
        register(second, user)
        assert table.connection_of("id") is first
    register(third, "alice")
    assert table.connection_of("id") is third
    table.connection_closed(first)  # type: ignore[arg-type]
    assert table.connection_of("id") is third
    table.connection_closed(third)  # type: ignore[arg-type]
    assert table.connection_of("id") is None
    register(fourth, "bob")
    assert table.connection_of("id") is fourth


def test_a_connection_that_changes_its_client_id_leaves_nothing_behind() -> None:
    table, connection = ProducerTable(), FakeConnection("a:1")
    for n in range(3):
        table.register(f"p{n}", connection, f"id{n}", language=JAVA, version=1, now_ms=0)  # type: ignore[arg-type]
    assert [table.connection_of(f"id{n}") for n in range(3)] == [None, None, connection]
    table.connection_closed(connection)  # type: ignore[arg-type]
    assert table.connection_of("id0") is None and table.connection_of("id2") is None


def test_all_subscriptions_together_take_bounded_memory(
    consumers: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumers_module, "MOST_BYTES", 100_000)
    table = consumers.table
    clients = [FakeConnection(f"c:{number}") for number in range(3)]
    consumers.heartbeat(clients[0], data("a", *[f"t{number}" for number in range(80)]))
    held = table.size
    assert 40_000 < held < 60_000
    with pytest.raises(NoRoom, match=r"group b .* 100000 bytes"):
        consumers.heartbeat(clients[1], data("b", *["x" * 1_000 + str(number) for number in range(80)]))
    assert 90_000 < table.size <= 100_000
    assert table.member("b", "id-c:1") is not None
    consumers.heartbeat(clients[0], data("a", *[f"t{number}" for number in range(80)], version=2))  # no more
    table.remember("r", SubscriptionData(topic="t", sub_string="x" * 50_000), ConsumeType.POP)
    assert table.size <= 100_000
    consumers.heartbeat(clients[1], data("b"))
    assert table.size == held
    table.remember("r", SubscriptionData(topic="t", sub_string="x" * 10_000, sub_version=1), ConsumeType.POP)
    table.remember("r", SubscriptionData(topic="t", sub_string="x" * 10_000, sub_version=2), ConsumeType.POP)
    assert held + 10_000 < table.size < held + 11_000
    table.forget_old_subscriptions(1_000, 10)
    assert table.size == held
    for client in clients:
        table.connection_closed(client)  # type: ignore[arg-type]
    assert table.size == 0
