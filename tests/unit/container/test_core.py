"""Which brokers may be in one container, and in which process each runs."""

from __future__ import annotations

import pytest

from batonmq.container.core import (
    BrokerClaims,
    BrokerIdentity,
    BrokerState,
    BrokerTable,
    Listener,
    split_paths,
)
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError


def claims(
    name: str, port: int, *, broker_id: int = 0, host: str = "0.0.0.0", store: str | None = None
) -> BrokerClaims:
    return BrokerClaims(
        BrokerIdentity("DefaultCluster", name, broker_id),
        broker_id > 0,
        (Listener("listenPort", host, port), Listener("listenPort + 1", host, port + 1 if port else 0)),
        frozenset({store or f"/store/{name}-{broker_id}"}),
    )


def refusal(table: BrokerTable, newcomer: BrokerClaims) -> str:
    before = len(table)
    with pytest.raises(MQError) as caught:
        table.join(newcomer)
    assert caught.value.code == ResponseCode.SYSTEM_ERROR and len(table) == before
    return caught.value.remark


@pytest.mark.parametrize(
    ("newcomer", "remark"),
    [
        (
            claims("a", 30_000),
            "DefaultCluster_a_0 has already been added to current broker container",
        ),
        (
            claims("b", 10_911),
            "DefaultCluster_b_0: port 10911 (listenPort) is used by DefaultCluster_a_0 (listenPort)",
        ),
        (
            claims("b", 10_910),
            "DefaultCluster_b_0: port 10911 (listenPort + 1) is used by DefaultCluster_a_0 (listenPort)",
        ),
        (
            claims("b", 10_911, host="127.0.0.1"),
            "DefaultCluster_b_0: port 10911 (listenPort) is used by DefaultCluster_a_0 (listenPort)",
        ),
        (
            claims("b", 10_811),
            "DefaultCluster_b_0: port 10811 (listenPort) is used by the container (listenPort)",
        ),
        (
            claims("b", 30_000, store="/store/a-0"),
            "DefaultCluster_b_0: /store/a-0 is a store of DefaultCluster_a_0 already",
        ),
        (
            claims("b", 30_000, store="/store/a-0/commitlog/b"),
            "DefaultCluster_b_0: its store /store/a-0/commitlog/b lies in /store/a-0, a store of "
            "DefaultCluster_a_0",
        ),
        (
            claims("b", 30_000, store="/store"),
            "DefaultCluster_b_0: its store /store holds /store/a-0, a store of DefaultCluster_a_0",
        ),
    ],
)
def test_a_broker_that_wants_what_another_has_is_refused(newcomer: BrokerClaims, remark: str) -> None:
    table = BrokerTable(taken=[Listener("listenPort", "0.0.0.0", 10_811)])
    table.join(claims("a", 10_911))
    assert refusal(table, newcomer) == remark


def test_master_and_slave_of_one_name_and_ports_of_different_addresses_may_be_together() -> None:
    table = BrokerTable()
    table.join(claims("a", 10_911, host="127.0.0.1"))
    table.join(claims("a", 10_921, broker_id=1))
    table.join(claims("b", 10_911, host="127.0.0.2"))
    table.join(claims("c", 0))
    table.join(claims("d", 0))
    assert len(table) == 5


def test_a_broker_that_is_being_removed_still_holds_its_ports_and_its_name() -> None:
    table = BrokerTable()
    entry = table.join(claims("a", 10_911))
    entry.state = BrokerState.STOPPING
    assert table.get(entry.claims.identity) is None
    assert refusal(table, claims("a", 30_000)) == "DefaultCluster_a_0 is being removed"
    assert "port 10911" in refusal(table, claims("b", 10_911))
    table.leave(entry)
    again = table.join(claims("a", 10_911))
    table.leave(entry)  # what left long ago takes nobody else's place
    assert table.get(again.claims.identity) is again


def test_masters_are_spread_over_the_processes_and_slaves_fill_up() -> None:
    table = BrokerTable(places=2)
    places = [
        table.join(claims(name, 0, broker_id=broker_id)).place
        for name, broker_id in [("a", 0), ("b", 1), ("c", 0), ("d", 1), ("e", 0), ("f", 0)]
    ]
    assert places == [0, 1, 1, 0, 0, 1]
    masters = [entry for entry in table if not entry.claims.slave]
    for entry in masters:
        if entry.place == 0:
            table.leave(entry)
    assert table.join(claims("g", 0)).place == 0


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        ("", []),
        ("/a.conf", ["/a.conf"]),
        ("/a.conf: /b.conf ::/c d.conf:", ["/a.conf", "/b.conf", "/c d.conf"]),
    ],
)
def test_paths_stand_between_colons(text: str, paths: list[str]) -> None:
    assert split_paths(text) == paths
