"""The parts that decide: routes, the choice of a queue, lists of name servers."""

from __future__ import annotations

import pytest

from batonmq.common.addresses import name_server_addresses
from batonmq.protocol.bodies.common import MessageQueue
from batonmq.protocol.bodies.routes import BrokerData, QueueData, TopicQueueMappingInfo, TopicRouteData
from batonmq.routing.picker import FAULT_MS, QueuePicker
from batonmq.routing.routes import parse_route, vanished_masters


def route(masters: dict[str, dict[int, str]], queues: int = 2, perm: int = 6) -> TopicRouteData:
    return TopicRouteData(
        [QueueData(name, queues, queues, perm) for name in masters],
        [BrokerData("c", name, addresses) for name, addresses in masters.items()],
    )


TWO = {"b": {0: "b0:1", 1: "b1:1"}, "a": {0: "a0:1"}}


def test_route_interleaves_writes_and_orders_reads() -> None:
    parsed = parse_route("t", route(TWO))
    assert [str(queue) for queue in parsed.write_queues] == ["t@a:0", "t@b:0", "t@a:1", "t@b:1"]
    assert [str(queue) for queue in parsed.read_queues] == ["t@a:0", "t@a:1", "t@b:0", "t@b:1"]
    assert parsed.master("b") == "b0:1" and parsed.master("x") is None
    assert parsed.addresses() == {"a0:1", "b0:1", "b1:1"}


def test_a_group_without_master_can_be_read_only() -> None:
    parsed = parse_route("t", route({"b": {1: "b1:1"}}))
    assert parsed.write_queues == () and len(parsed.read_queues) == 2
    assert parsed.master("b") is None and parsed.replica("b") == "b1:1"


@pytest.mark.parametrize(("perm", "write", "read"), [(6, 2, 2), (4, 0, 2), (2, 2, 0), (0, 0, 0)])
def test_permissions(perm: int, write: int, read: int) -> None:
    parsed = parse_route("t", route({"a": {0: "a:1"}}, perm=perm))
    assert (len(parsed.write_queues), len(parsed.read_queues)) == (write, read)


def test_the_preferred_replica_is_read_while_it_lives() -> None:
    parsed = parse_route("t", route(TWO))
    assert [parsed.replica("b", number) for number in (0, 1, 2)] == ["b0:1", "b1:1", "b0:1"]


def mapped(**claims: tuple[int, list[int]]) -> TopicRouteData:
    """A static topic of four logical queues: broker -> (epoch, the queues it says that it leads)."""
    return TopicRouteData(
        [QueueData(name, len(led), len(led), 6) for name, (_, led) in claims.items()],
        [BrokerData("c", name, {0: f"{name}0:1"}) for name in claims],
        topic_queue_mapping_by_broker={
            name: TopicQueueMappingInfo("t", "__global__", 4, name, epoch, False, dict.fromkeys(led, 0))
            for name, (epoch, led) in claims.items()
        },
    )


LOGICAL = [MessageQueue("t", "__syslo__global__", number) for number in range(4)]


def test_the_queues_of_a_static_topic_are_its_logical_ones() -> None:
    parsed = parse_route("t", mapped(b=(1, [3, 1]), a=(1, [0, 2])))
    assert parsed.is_static and parsed.write_queues == parsed.read_queues == tuple(LOGICAL)
    assert [parsed.broker_of(queue) for queue in LOGICAL] == ["a", "b", "a", "b"]
    assert parsed.master(parsed.broker_of(LOGICAL[1])) == "b0:1"
    assert parsed.broker_of(MessageQueue("t", "a", 0)) == "", "no queue of a static topic names its broker"


def test_the_later_of_two_leaders_has_the_queue() -> None:
    for epochs, leader in (((1, 2), "b"), ((2, 1), "a")):
        parsed = parse_route("t", mapped(a=(epochs[0], [0, 1, 2, 3]), b=(epochs[1], [1])))
        assert [parsed.broker_of(queue) for queue in LOGICAL] == ["a", leader, "a", "a"]


def test_a_queue_without_leader_is_read_and_not_written() -> None:
    data = mapped(a=(1, [0, 2]), b=(1, [3]))
    parsed = parse_route("t", data)
    assert parsed.read_queues == tuple(LOGICAL)
    assert parsed.write_queues == (LOGICAL[0], LOGICAL[2], LOGICAL[3])
    assert parsed.broker_of(LOGICAL[1]) == "" and parsed.master("") is None
    data.broker_datas[0].broker_addrs = {1: "a1:1"}
    data.queue_datas[1].perm = 4
    assert parse_route("t", data).write_queues == (), "one leader has no master, the other no permission"
    assert parse_route("t", data).read_queues == tuple(LOGICAL)


def test_a_producer_avoids_the_broker_that_leads_a_queue() -> None:
    parsed = parse_route("t", mapped(a=(1, [0, 2]), b=(1, [1, 3])))
    picker = QueuePicker()
    assert [picker.pick(parsed, "t", 0, avoid="a") for _ in range(4)] == [LOGICAL[1], LOGICAL[3]] * 2
    picker.failed("b", 0)
    assert [picker.pick(parsed, "t", 1) for _ in range(4)] == [LOGICAL[0], LOGICAL[2]] * 2
    assert picker.pick(parsed, "t", FAULT_MS) == LOGICAL[3]


MASTERS = [
    (TWO, {"b": {0: "b1:1"}, "a": {0: "a0:1"}}, {"b0:1"}),
    (TWO, {"b": {0: "b1:1", 1: "b0:1"}, "a": {0: "a0:1"}}, set()),
    (TWO, {"b": {1: "b1:1"}, "a": {0: "a0:1"}}, set()),
    (TWO, TWO, set()),
]


@pytest.mark.parametrize(("old", "new", "gone"), MASTERS)
def test_vanished_masters(
    old: dict[str, dict[int, str]], new: dict[str, dict[int, str]], gone: set[str]
) -> None:
    assert vanished_masters(parse_route("t", route(old)), parse_route("t", route(new))) == gone


def test_queues_take_turns() -> None:
    parsed, picker = parse_route("t", route(TWO)), QueuePicker(5)
    picked = [picker.pick(parsed, "t", 0) for _ in range(8)]
    assert sorted(map(str, picked)) == sorted(2 * ["t@a:0", "t@a:1", "t@b:0", "t@b:1"])


def test_a_faulty_broker_is_passed_over_for_a_while() -> None:
    parsed, picker = parse_route("t", route(TWO)), QueuePicker()
    picker.failed("a", 1000)
    assert {str(picker.pick(parsed, "t", 1000)) for _ in range(6)} == {"t@b:0", "t@b:1"}
    later = 1000 + FAULT_MS
    assert {str(picker.pick(parsed, "t", later)) for _ in range(6)} >= {"t@a:0", "t@b:1"}
    picker.worked("a")
    assert not picker.is_faulty("a", 1000)


def test_with_nothing_else_the_faulty_broker_is_tried() -> None:
    parsed, picker = parse_route("t", route({"a": {0: "a:1"}})), QueuePicker()
    picker.failed("a", 0)
    assert picker.pick(parsed, "t", 0, avoid="a") is not None
    assert picker.pick(parse_route("t", route({})), "t", 0) is None


ADDRESSES = [("a:1;b:2", ["a:1", "b:2"]), (" a:1 , a:1", ["a:1"]), (["x:1"], ["x:1"])]


@pytest.mark.parametrize(("given_", "expected"), ADDRESSES)
def test_addresses(given_: str | list[str], expected: list[str]) -> None:
    assert name_server_addresses(given_) == expected


def test_no_address() -> None:
    with pytest.raises(ValueError, match="host:port"):
        name_server_addresses(" ; ")
