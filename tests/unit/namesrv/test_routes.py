"""The route table: who registers what, and what route comes of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from batonmq.namesrv.routes import BrokerKey, RouteTable, in_zone
from batonmq.protocol.bodies.common import DataVersion
from batonmq.protocol.bodies.routes import BrokerData, QueueData, TopicQueueMappingInfo, TopicRouteData
from batonmq.protocol.bodies.topics import (
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigAndMappingSerializeWrapper,
)
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.namesrv import RegisterBroker, UnregisterBroker

TOPICS = ("t1", "t2")


def body(
    topics: tuple[str, ...] = TOPICS, *, version: int = 1, state: int = 0, queues: int = 4, flag: int = 0
) -> RegisterBrokerBody:
    return RegisterBrokerBody(
        TopicConfigAndMappingSerializeWrapper(
            {t: TopicConfig(t, queues, queues, topic_sys_flag=flag) for t in topics},
            DataVersion(timestamp=7, counter=version, state_version=state),
        )
    )


def header(name: str, broker_id: int, address: str | None = None, **more: object) -> RegisterBroker:
    address = address or f"{name}{broker_id}:1"
    return RegisterBroker(
        broker_name=name,
        broker_addr=address,
        cluster_name=str(more.pop("cluster", "c")),
        ha_server_addr=f"ha-{address}",
        broker_id=broker_id,
        **more,  # type: ignore[arg-type]
    )


def gone(name: str, broker_id: int, address: str | None = None) -> UnregisterBroker:
    return UnregisterBroker(name, address or f"{name}{broker_id}:1", "c", broker_id)


def members(table: RouteTable, name: str) -> Mapping[int, str]:
    return table.member_group("c", name).broker_addrs


def perms(table: RouteTable, topic: str) -> dict[str, int]:
    route = table.route(topic)
    return {} if route is None else {each.broker_name: each.perm for each in route.queue_datas}


def test_a_topic_has_queues_on_every_group_that_registered_it() -> None:
    table = RouteTable()
    table.register(header("a", 0), body(), None, 0)
    table.register(header("b", 0), body(("t1", "t3"), queues=8), None, 0)
    route = table.route("t1")
    assert route is not None
    assert [(q.broker_name, q.read_queue_nums) for q in route.queue_datas] == [("a", 4), ("b", 8)]
    assert {b.broker_name: b.broker_addrs for b in route.broker_datas} == {
        "a": {0: "a0:1"},
        "b": {0: "b0:1"},
    }
    assert table.route("t9") is None
    assert sorted(table.topics()) == ["t1", "t2", "t3"]


def test_a_slave_adds_its_address_and_learns_its_master_but_brings_no_topics() -> None:
    table = RouteTable()
    assert table.register(header("a", 1), body(), None, 0).master_address is None
    assert table.route("t1") is None
    table.register(header("a", 0), body(), None, 0)
    answer = table.register(header("a", 1), body(("x", "y")), None, 0)
    assert (answer.master_address, answer.ha_address) == ("a0:1", "ha-a0:1")
    assert members(table, "a") == {0: "a0:1", 1: "a1:1"}
    assert "x" not in table.topics()


def test_a_slave_that_becomes_master_leaves_its_old_id() -> None:
    table = RouteTable()
    table.register(header("a", 0), body(), None, 0)
    table.register(header("a", 1, "s:1"), body(), None, 0)
    table.unregister([gone("a", 0)])
    table.register(header("a", 0, "s:1"), body(state=2), None, 0)
    assert members(table, "a") == {0: "s:1"}


@pytest.mark.parametrize(("newcomer_state", "winner"), [(4, "old:1"), (5, "new:1"), (6, "new:1")])
def test_of_two_that_claim_one_id_the_later_master_epoch_stays(newcomer_state: int, winner: str) -> None:
    table = RouteTable()
    table.register(header("a", 0, "old:1"), body(state=5), None, 0)
    table.register(header("a", 0, "new:1"), body(state=newcomer_state), None, 0)
    assert members(table, "a") == {0: winner}
    assert (table.data_version(BrokerKey("c", "new:1")) is not None) == (winner == "new:1")


def test_two_brokers_with_one_id_are_named(caplog: pytest.LogCaptureFixture) -> None:
    table = RouteTable()
    table.register(header("a", 0, "old:1"), body(state=5), None, 0)
    table.register(header("a", 0, "new:1"), body(state=6), None, 0)
    assert "alive" not in caplog.text, "a switch of the master"
    table.register(header("a", 0, "other:1"), body(state=6), None, 0)
    assert "other:1 takes id 0 of a from new:1, which is alive" in caplog.text


def test_one_single_topic_is_refused_from_an_unknown_broker_and_leaves_no_trace() -> None:
    table = RouteTable()
    with pytest.raises(MQError, match="register broker failed"):
        table.register(header("a", 0), body(("only",)), None, 0)
    assert table.cluster_info().broker_addr_table == {} and table.cluster_info().cluster_addr_table == {}
    table.register(header("a", 0), body(), None, 0)
    table.register(header("a", 0), body(("only",), version=2), None, 0)
    assert sorted(table.topics()) == ["only", "t1", "t2"]


def test_topics_are_taken_up_again_only_when_their_version_changed() -> None:
    table = RouteTable()
    table.register(header("a", 0), body(version=1), None, 0)
    table.register(header("a", 0), body(version=1, queues=16), None, 0)
    route = table.route("t1")
    assert route is not None and route.queue_datas[0].read_queue_nums == 4
    table.register(header("a", 0), body(version=2, queues=16), None, 0)
    route = table.route("t1")
    assert route is not None and route.queue_datas[0].read_queue_nums == 16
    table.delete_topic("t1")
    table.register(header("a", 0), body(version=2, queues=16), None, 0)  # same version, but missing
    assert table.route("t1") is not None


@pytest.mark.parametrize(("delete", "left"), [(False, ["t1", "t2", "t3"]), (True, ["t2", "t3"])])
def test_topics_no_longer_registered_go_only_when_asked_to(delete: bool, left: list[str]) -> None:
    table = RouteTable(delete_absent_topics=delete)
    table.register(header("a", 0), body(), None, 0)
    table.register(header("a", 0), body(("t2", "t3"), version=2), None, 0)
    assert sorted(table.topics()) == left


def test_a_group_goes_with_its_last_broker_and_takes_its_queues_along() -> None:
    table = RouteTable()
    for name in ("a", "b"):
        table.register(header(name, 0), body(), None, 0)
    table.register(header("a", 1), body(), None, 0)
    table.unregister([gone("a", 0)])
    assert perms(table, "t1") == {"a": 6, "b": 6} and members(table, "a") == {1: "a1:1"}
    table.unregister([gone("a", 1), gone("b", 0), gone("z", 0)])
    assert table.topics() == [] and table.cluster_info().cluster_addr_table == {}
    assert table.cluster_info().broker_addr_table == {}


def test_an_unregistration_of_an_old_address_does_not_hurt_the_new_one() -> None:
    table = RouteTable()
    table.register(header("a", 0, "old:1"), body(), None, 0)
    table.register(header("a", 0, "new:1"), body(), None, 0)
    table.unregister([gone("a", 0, "old:1")])
    assert members(table, "a") == {0: "new:1"}
    assert table.leaving([BrokerKey("c", "old:1")]) == []


# Slave acting master (RIP-32)


@pytest.mark.parametrize(
    ("supported", "enabled", "shown", "perm"),
    [
        (True, True, {0: "a1:1", 2: "a2:1"}, 4),
        (False, True, {1: "a1:1", 2: "a2:1"}, 4),
        (True, False, {1: "a1:1", 2: "a2:1"}, 6),
        (True, None, {1: "a1:1", 2: "a2:1"}, 6),
    ],
)
def test_a_group_without_master(
    supported: bool, enabled: bool | None, shown: dict[int, str], perm: int
) -> None:
    table = RouteTable(support_acting_master=supported)
    for broker_id in (0, 1, 2):
        table.register(header("a", broker_id, enable_acting_master=enabled), body(), None, 0)
    table.unregister([gone("a", 0)])
    route = table.route("t1")
    assert route is not None
    assert route.broker_datas[0].broker_addrs == shown and perms(table, "t1") == {"a": perm}
    assert members(table, "a") == {1: "a1:1", 2: "a2:1"}  # the table itself is not touched
    table.register(header("a", 0, enable_acting_master=enabled), body(version=9), None, 0)
    assert perms(table, "t1") == {"a": 6}


def test_the_prime_slave_registers_topics_read_only() -> None:
    table = RouteTable(support_acting_master=True)
    table.register(header("a", 2, enable_acting_master=True), body(), None, 0)
    assert perms(table, "t1") == {"a": 4}
    table.register(header("a", 3, enable_acting_master=True), body(("x", "y")), None, 0)
    assert "x" not in table.topics()


def test_topics_of_the_members_among_themselves_show_no_acting_master() -> None:
    topic = "rmq_sys_SYNC_BROKER_MEMBER_a"
    table = RouteTable(support_acting_master=True)
    table.register(header("a", 1, enable_acting_master=True), body((topic, "t")), None, 0)
    route = table.route(topic)
    assert route is not None and route.broker_datas[0].broker_addrs == {1: "a1:1"}


def test_members_are_notified_when_their_least_id_changes() -> None:
    table = RouteTable(notify_min_broker_id=True)

    def come(broker_id: int) -> tuple[tuple[str, ...], object]:
        notice = table.register(header("a", broker_id, enable_acting_master=True), body(), None, 0).notice
        return ((), None) if notice is None else (notice.addresses, notice.header.min_broker_id)

    assert come(2) == ((), None)
    assert come(3) == ((), None)
    assert come(1) == (("a2:1", "a3:1"), 1)
    (notice,) = table.unregister([gone("a", 1)])
    assert notice.addresses == ("a2:1", "a3:1")
    assert notice.header.min_broker_id == 2 and notice.header.min_broker_addr == "a2:1"
    assert notice.header.offline_broker_addr == "a1:1"
    assert table.unregister([gone("a", 3)]) == []
    assert table.unregister([gone("a", 2)]) == []
    table.notify_min_broker_id = False
    come(2), come(3)
    assert table.unregister([gone("a", 2)]) == []


# Liveness


def test_silence_counts_by_each_brokers_own_timeout() -> None:
    table = RouteTable()
    table.register(header("a", 0), body(), "conn", 0)
    table.register(header("b", 0, heartbeat_timeout_millis=10_000), body(), "conn", 0)
    a, b = BrokerKey("c", "a0:1"), BrokerKey("c", "b0:1")
    assert table.expired(10_000) == []
    assert table.expired(10_001) == [b]
    table.seen("c", "b0:1", 5_000)
    assert table.expired(15_000) == [] and table.expired(120_000) == [b] and table.expired(120_001) == [a, b]
    table.seen("c", "unknown:1", 1)
    table.unregister(table.leaving([b]))
    assert perms(table, "t1") == {"a": 6}


def test_all_brokers_of_a_connection_are_found() -> None:
    table, one, two = RouteTable(), object(), object()
    table.register(header("a", 0), body(), one, 0)
    table.register(header("b", 0), body(), one, 0)
    table.register(header("b", 0), body(), two, 0)
    assert table.on_connection(one) == [BrokerKey("c", "a0:1")]
    assert table.connection(BrokerKey("c", "b0:1")) is two
    assert table.connection(BrokerKey("c", "?")) is None


# Topics and permissions


def test_write_permission_is_wiped_and_given_back() -> None:
    table = RouteTable()
    for name in ("a", "b"):
        table.register(header(name, 0), body(), None, 0)
    assert table.set_writable("a", False) == 2 and perms(table, "t1") == {"a": 4, "b": 6}
    table.register(header("a", 0), body(), None, 0)
    assert perms(table, "t1") == {"a": 4, "b": 6}  # an unchanged registration does not undo it
    assert table.set_writable("a", True) == 2 and perms(table, "t1") == {"a": 6, "b": 6}
    assert table.set_writable("nobody", True) == 0


def test_topics_are_registered_and_deleted_by_hand() -> None:
    table = RouteTable()
    table.register(header("a", 0), body(), None, 0)
    table.register(header("b", 0, cluster="other"), body(), None, 0)
    table.register_topic("new", [QueueData("a", 1, 1, 6), QueueData("nobody", 1, 1, 6)])
    table.register_topic("empty", [])
    assert table.route("new") is None and "empty" not in table.topics()
    table.register_topic("new", [QueueData("a", 1, 1, 6)])
    assert perms(table, "new") == {"a": 6}
    table.delete_topic("t1", "other")
    table.delete_topic("t1", "unknown cluster")
    assert perms(table, "t1") == {"a": 6}
    table.delete_topic("t1", "c")
    assert "t1" not in table.topics()
    assert sorted(table.topics_of_cluster("c")) == ["new", "t2"]
    assert table.topics_of_cluster("other") == ["t2"] and table.topics_of_cluster("none") == []


def test_lists_of_system_and_unit_topics() -> None:
    table = RouteTable()
    assert table.system_topics() == ([], None)
    table.register(header("a", 0), body(("u", "u2"), flag=1), None, 0)
    table.register(header("b", 0), body(("s", "s2"), flag=2), None, 0)
    table.register(header("d", 0), body(("us", "us2"), flag=3), None, 0)
    assert table.system_topics() == (["c", "a", "b", "d"], "a0:1")
    assert table.unit_topics() == ["u", "u2", "us", "us2"]
    assert table.unit_subscribed_topics() == ["s", "s2", "us", "us2"]
    assert table.unit_subscribed_topics(without_unit=True) == ["s", "s2"]


def test_mappings_of_static_topics_come_with_the_route() -> None:
    table = RouteTable()
    registered = body()
    mapping = TopicQueueMappingInfo(topic="t1", total_queues=2, bname="a", curr_id_map={0: 0})
    registered.topic_config_serialize_wrapper.topic_queue_mapping_info_map = {"t1": mapping}
    table.register(header("a", 0), registered, None, 0)
    route = table.route("t1")
    assert route is not None and route.topic_queue_mapping_by_broker == {"a": mapping}


@pytest.mark.parametrize(
    "forget",
    [
        lambda table: None,  # the broker registers the topic without a mapping
        lambda table: table.delete_topic("t1"),
        lambda table: table.delete_topic("t1", "c"),
    ],
)
def test_a_topic_that_is_no_longer_static_loses_its_mapping(forget: Callable[[RouteTable], None]) -> None:
    table, registered = RouteTable(), body()
    mapping = TopicQueueMappingInfo(topic="t1", total_queues=2, bname="a", curr_id_map={0: 0})
    registered.topic_config_serialize_wrapper.topic_queue_mapping_info_map = {"t1": mapping}
    table.register(header("a", 0), registered, None, 0)
    forget(table)
    table.register(header("a", 0), body(version=2), None, 0)
    route = table.route("t1")
    assert route is not None and route.topic_queue_mapping_by_broker is None


def static_body(name: str = "a") -> RegisterBrokerBody:
    made = body()
    mapping = TopicQueueMappingInfo(topic="t1", total_queues=2, bname=name, curr_id_map={0: 0})
    made.topic_config_serialize_wrapper.topic_queue_mapping_info_map = {"t1": mapping}
    return made


@pytest.mark.parametrize("first", ["leave", "register"])
def test_the_mapping_of_a_broker_that_left_does_not_make_the_topic_of_another_one_static(first: str) -> None:
    table = RouteTable()
    table.register(header("a", 0), static_body(), None, 0)
    if first == "register":
        table.register(header("b", 0), body(), None, 0)
    table.unregister([gone("a", 0)])
    if first == "leave":
        table.register(header("b", 0), body(), None, 0)
    route = table.route("t1")
    assert route is not None and route.topic_queue_mapping_by_broker is None


def test_the_mapping_of_a_broker_that_is_away_stays_while_others_have_one() -> None:
    table = RouteTable()
    table.register(header("a", 0), static_body(), None, 0)
    table.register(header("b", 0), static_body("b"), None, 0)
    table.unregister([gone("a", 0)])
    route = table.route("t1")
    assert route is not None and {*(route.topic_queue_mapping_by_broker or ())} == {"a", "b"}
    table.unregister([gone("b", 0)])
    table.register(header("b", 0), static_body("b"), None, 0)
    route = table.route("t1")
    assert route is not None and {*(route.topic_queue_mapping_by_broker or ())} == {"b"}


def test_a_static_topic_that_was_deleted_only_here_comes_back_static() -> None:
    table = RouteTable()
    table.register(header("a", 0), static_body(), None, 0)
    table.delete_topic("t1")
    table.register(header("a", 0), static_body(), None, 0)  # the broker still has it, unchanged
    route = table.route("t1")
    assert route is not None and list(route.topic_queue_mapping_by_broker or ()) == ["a"]


def test_a_registration_of_other_topics_leaves_the_mapping() -> None:
    table, registered = RouteTable(), body()
    mapping = TopicQueueMappingInfo(topic="t1", total_queues=2, bname="a", curr_id_map={0: 0})
    registered.topic_config_serialize_wrapper.topic_queue_mapping_info_map = {"t1": mapping}
    table.register(header("a", 0), registered, None, 0)
    table.register(header("a", 0), body(("t2",), version=2), None, 0)  # RocketMQ's incremental one
    route = table.route("t1")
    assert route is not None and route.topic_queue_mapping_by_broker == {"a": mapping}


def test_filter_servers_come_with_the_route_until_they_are_gone() -> None:
    table = RouteTable()
    with_filter = body()
    with_filter.filter_server_list = ["f:1"]
    table.register(header("a", 0), with_filter, None, 0)
    route = table.route("t1")
    assert route is not None and route.filter_server_table == {"a0:1": ["f:1"]}
    table.register(header("a", 0), body(), None, 0)
    route = table.route("t1")
    assert route is not None and route.filter_server_table == {}


def test_a_route_is_a_copy() -> None:
    table = RouteTable()
    table.register(header("a", 0), body(), None, 0)
    route = table.route("t1")
    assert route is not None
    route.broker_datas[0].broker_addrs.clear()
    route.queue_datas[0].perm = 0
    assert members(table, "a") == {0: "a0:1"} and perms(table, "t1") == {"a": 6}


def test_a_zone_sees_its_own_groups_and_those_without_master() -> None:
    route = TopicRouteData(
        [QueueData(name) for name in "abc"],
        [
            BrokerData("c", "a", {0: "a0"}, zone_name="Z1"),
            BrokerData("c", "b", {0: "b0"}, zone_name="z2"),
            BrokerData("c", "c", {1: "c1"}, zone_name="z2"),
        ],
        {"a0": ["f"], "b0": ["f"]},
    )
    seen = in_zone(route, "z1")
    assert [b.broker_name for b in seen.broker_datas] == ["a", "c"]
    assert [q.broker_name for q in seen.queue_datas] == ["a", "c"]
    assert seen.filter_server_table == {"a0": ["f"]} and len(route.broker_datas) == 3
