"""Which hosts a fault hits, and which commands the switch gets."""

from __future__ import annotations

import random
from functools import reduce

import pytest

from tests.chaos.faults import Busy, Cut, Hang, Isolate, Kill, Lose, Pick, Split, View, both, strike
from tests.chaos.isolate import TOOLS, CannotIsolate, check_tools, run
from tests.chaos.network import CLIENTS, Network, links, links_among
from tests.chaos.scenarios import CLIENTS as CLIENT_PICK
from tests.chaos.scenarios import CONTROLLERS, GROUP, LEADER, MASTER, REPLICAS, SCENARIOS, SLAVE

VIEW = View("b1", ("b0", "b1", "b2"), "c2", ("c0", "c1", "c2"), ("n0", "n1"))


def rng() -> random.Random:
    return random.Random(7)


def test_victims_are_picked_by_role() -> None:
    assert strike(Kill(MASTER), VIEW, rng()).kill == ("b1",)
    assert strike(Hang(LEADER), VIEW, rng()).hang == ("c2",)
    assert strike(Kill(SLAVE), VIEW, rng()).kill in {("b0",), ("b2",)}
    assert len(set(strike(Kill(Pick("controller", 2)), VIEW, rng()).kill)) == 2
    with pytest.raises(LookupError, match="the master wanted"):
        strike(Kill(MASTER), View(None, ("b0",), None, (), ()), rng())


def test_links_of_cuts() -> None:
    assert strike(Cut(REPLICAS, REPLICAS), VIEW, rng()).cut == links_among(VIEW.replicas)
    assert strike(Cut(CONTROLLERS, REPLICAS), VIEW, rng()).cut == links(VIEW.controllers, VIEW.replicas)
    assert strike(Lose(REPLICAS, REPLICAS, 80), VIEW, rng()).loss == dict.fromkeys(
        links_among(VIEW.replicas), 80
    )
    alone = strike(Isolate(MASTER), VIEW, rng()).cut
    assert alone == links(("b1",), ("b0", "b2", "c0", "c1", "c2", "n0", "n1", CLIENTS))
    assert alone - strike(Isolate(MASTER, but=(CLIENT_PICK,)), VIEW, rng()).cut == links(("b1",), (CLIENTS,))


def test_a_split_cuts_two_sides_that_together_are_all_brokers_and_controllers() -> None:
    seen = set()
    for seed in range(50):
        cut = strike(Split(), VIEW, random.Random(seed)).cut
        nodes = frozenset().union(*cut)
        assert nodes == {*VIEW.replicas, *VIEW.controllers}
        side = frozenset(name for name in nodes if frozenset((name, "b0")) not in cut)
        assert cut == links(side, nodes - side)
        seen.add(side)
    assert len(seen) > 10


def test_a_busy_machine_harms_nobody() -> None:
    assert strike(Busy(3), VIEW, rng()).busy == 3
    assert strike(Busy(3), VIEW, rng()).harms_nobody
    with_a_kill = both(strike(Busy(3), VIEW, rng()), strike(Kill(MASTER), VIEW, rng()))
    assert with_a_kill.busy == 3 and not with_a_kill.harms_nobody


def test_faults_together() -> None:
    blow = reduce(both, (strike(fault, VIEW, rng()) for fault in (Kill(MASTER), Hang(LEADER), Kill(MASTER))))
    assert (blow.kill, blow.hang) == (("b1",), ("c2",))
    assert blow.text == "kill -9 b1 + hang c2 + kill -9 b1"


def test_one_seed_gives_one_schedule() -> None:
    def schedule(seed: int) -> list[str]:
        drawn = random.Random(seed)
        return [strike(fault, VIEW, drawn).text for s in SCENARIOS for r in s.rounds for fault in r]

    assert schedule(3) == schedule(3)
    assert schedule(3) != schedule(4)


def test_the_ten_scenarios_of_seed_004_are_there_and_a_busy_machine() -> None:
    assert len(GROUP) == 11
    assert len(SCENARIOS) == len({scenario.name for scenario in SCENARIOS})
    assert all(scenario.quick_hold_s <= scenario.hold_s for scenario in SCENARIOS)


def test_rules_of_the_switch() -> None:
    network = Network(["a", "b", "c"])
    text = network.rules(links(("a",), ("b",)), dict.fromkeys(links(("b",), ("c",)), 80))
    assert "ip saddr . ip daddr { 10.67.0.1 . 10.67.0.2, 10.67.0.2 . 10.67.0.1 } drop" in text
    assert "{ 10.67.0.2 . 10.67.0.3, 10.67.0.3 . 10.67.0.2 } numgen random mod 100 < 80 drop" in text
    assert "drop" not in network.rules(frozenset(), {})
    assert text.startswith("add table bridge chaos\ndelete table bridge chaos\n")


def test_missing_tools_are_named_with_their_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.chaos.isolate.shutil.which", lambda name: None)
    with pytest.raises(CannotIsolate, match="apt-get install iproute2 mount nftables util-linux"):
        check_tools()
    assert set(TOOLS) >= {"ip", "nft"}


def test_a_tool_that_fails_says_why() -> None:
    with pytest.raises(CannotIsolate, match="ls /nonexistent failed"):
        run("ls", "/nonexistent")
    run("true")
