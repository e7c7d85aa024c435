"""The consumer group table: creation on first use, changes, and the file RocketMQ wrote."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.unit.broker.fakes import make_config

from batonmq.broker.tables import subscriptions
from batonmq.broker.tables.subscriptions import SubscriptionTable
from batonmq.common.clock import ManualClock
from batonmq.protocol.bodies.common import DataVersion
from batonmq.protocol.bodies.groups import SubscriptionGroupConfig
from batonmq.protocol.errors import MQError

DATA = Path(__file__).parents[2] / "data" / "broker"


def table(**keys: object) -> SubscriptionTable:
    return SubscriptionTable(make_config(**keys), ManualClock())


def test_system_groups_are_those_of_a_rocketmq_broker() -> None:
    java = json.loads((DATA / "wire" / "allgroups.json").read_bytes())["subscriptionGroupTable"]
    del java["GroupJ"]
    ours = json.loads(table().encode())["subscriptionGroupTable"]
    assert {n: {k: v for k, v in c.items() if v is not None} for n, c in ours.items()} == {
        n: {**c, "groupRetryPolicy": ours[n]["groupRetryPolicy"]} for n, c in java.items()
    }


def test_an_unknown_group_is_created_and_announced_once() -> None:
    groups = table()
    changes: list[int] = []
    groups.on_change = lambda: changes.append(1)
    assert groups.get("g") is None
    made = groups.get_or_create("g")
    assert made is not None and made.retry_max_times == 16
    assert groups.get_or_create("g") is made
    assert len(changes) == 1 and groups.version.counter == 1


@pytest.mark.parametrize("name", ["", "  ", "bad group", "x" * 121])
def test_a_group_with_an_invalid_name_is_never_created(name: str) -> None:
    assert table().get_or_create(name) is None


def test_creation_follows_the_configuration_while_running() -> None:
    groups = table(auto_create_subscription_group=False)
    assert groups.get_or_create("g") is None
    groups.configure(make_config())
    assert groups.get_or_create("g") is not None


def test_update_and_delete() -> None:
    groups = table()
    groups.update(SubscriptionGroupConfig(group_name="g", retry_queue_nums=3))
    found = groups.get("g")
    assert found is not None and found.retry_queue_nums == 3
    with pytest.raises(MQError, match="unsupported key: x"):
        groups.update(SubscriptionGroupConfig(group_name="g", attributes={"+x": "1"}))
    assert groups.delete("g") and not groups.delete("g")
    assert "g" not in groups


def test_forbidden_bits() -> None:
    groups = table()
    assert not groups.forbidden("g", "t")
    groups.set_forbidden("g", "t", True)
    assert groups.forbidden("g", "t") and not groups.forbidden("g", "u")
    assert json.loads(groups.encode())["forbiddenTable"] == {"g": {"t": 4}}
    groups.set_forbidden("g", "t", False)
    assert groups.forbidden_table == {}


def test_pages() -> None:
    groups = table()
    assert list(groups.page(groups.version, 1, 2)) == sorted(groups)[1:3]
    assert list(groups.page(DataVersion(counter=5), 1, 2)) == sorted(groups)[:2]


def test_a_file_of_rocketmq_is_read() -> None:
    data = (DATA / "java" / "subscriptionGroup.json").read_bytes()
    groups = table()
    groups.restore(data)
    java = json.loads(data)
    assert set(groups) == set(java["subscriptionGroupTable"])
    found = groups.get("GroupJ")
    assert found is not None and not found.consume_from_min_enable and not found.consume_broadcast_enable
    assert groups.version.counter == java["dataVersion"]["counter"]
    again = table()
    again.restore(groups.encode())
    assert again.encode() == groups.encode()


def test_a_broken_file_changes_nothing() -> None:
    groups = table()
    before = groups.encode()
    with pytest.raises(ValueError):
        groups.restore(b'{"subscriptionGroupTable":{"g":3}}')
    assert groups.encode() == before


def test_a_slave_loads_the_masters_table() -> None:
    master, slave = table(), table()
    master.get_or_create("g")
    master.set_forbidden("g", "t", True)
    assert slave.replace(master.table, master.forbidden_table, master.version)
    assert slave.encode() == master.encode()
    assert not slave.replace(master.table, master.forbidden_table, master.version)


def test_groups_of_light_queues_exist_and_are_not_in_the_table() -> None:
    changes: list[int] = []
    groups = SubscriptionTable(make_config(), ManualClock(), light_queues=True)
    groups.on_change = lambda: changes.append(1)
    expected = SubscriptionGroupConfig(group_name="%LMQ%g")
    assert groups.get("%LMQ%g") == groups.get_or_create("%LMQ%g") == expected
    groups.update(SubscriptionGroupConfig(group_name="%LMQ%g", consume_enable=False))
    assert groups.get("%LMQ%g") == expected and "%LMQ%g" in groups
    assert not changes and "%LMQ%g" not in groups.table
    assert "%LMQ%g" not in table()


def test_a_client_cannot_create_groups_without_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    groups = table()
    monkeypatch.setattr(subscriptions, "MOST_CREATED", len(groups) + 3)
    groups.ensure([f"g{number}" for number in range(5)])
    groups.ensure(["g0", "late"])
    assert [group for group in groups if group.startswith("g")] == ["g0", "g1", "g2"]
    assert groups.get_or_create("late") is None
    assert (
        len([line for line in caplog.messages if "groups are no longer created automatically" in line]) == 1
    )
    groups.update(SubscriptionGroupConfig(group_name="by an operator"))
    assert "by an operator" in groups
    groups.delete("g0")
    groups.delete("g1")
    assert groups.get_or_create("late") is not None
