"""The parts that decide: routes, the choice of a queue, lists of name servers."""

from __future__ import annotations

import pytest

from batonmq.protocol.bodies.routes import BrokerData, QueueData, TopicRouteData
from batonmq.routing.name_servers import name_server_addresses
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
