"""Groups without controllers: their layout, their scenarios, and what the report says about them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from batonmq.demo.cluster import Place
from batonmq.protocol.message.ids import pack_host
from batonmq.protocol.message.record import MessageExt
from tests.chaos import report
from tests.chaos.__main__ import plan
from tests.chaos.check import Kind, Send, check
from tests.chaos.cluster import host_names, places_of, stores_of
from tests.chaos.fixed import FixedGroups
from tests.chaos.ground import take_times
from tests.chaos.load import body_of, found
from tests.chaos.page import BEGIN, END, FIXED_BEGIN, FIXED_END, write_page
from tests.chaos.results import Result, RoundResult
from tests.chaos.run import acting_spans
from tests.chaos.scenarios import CLASSIC, CONTAINERS, GROUP, GROUPS, find


def groups(layout: str, directory: Path) -> FixedGroups:
    hosts = {name: f"10.67.0.{number}" for number, name in enumerate(host_names(2, layout), 1)}
    return FixedGroups(layout, directory, lambda name: Place(hosts[name]), {"flushDiskType": "SYNC_FLUSH"})


def test_a_pair_is_two_brokers_with_roles_in_their_files(tmp_path: Path) -> None:
    cluster = groups("classic", tmp_path)
    master, slave = cluster.brokers
    assert (master.verb, master.settings["brokerRole"], slave.settings["brokerRole"]) == (
        *("broker", "SYNC_MASTER"),
        "SLAVE",
    )
    assert slave.settings["flushDiskType"] == "SYNC_FLUSH"
    assert len({path for paths in stores_of(cluster) for path in paths}) == 2


def test_containers_hold_a_master_and_the_other_sets_slave(tmp_path: Path) -> None:
    cluster = groups("containers", tmp_path)
    for node, text in zip(cluster.brokers, ("broker-a-0 broker-b-1", "broker-a-1 broker-b-0"), strict=True):
        paths = str(node.settings["brokerConfigPaths"]).split(":")
        assert sorted(Path(path).stem for path in paths) == text.split()
        assert all(f"brokerIP1={node.place.host}" in Path(path).read_text() for path in paths)
    assert len({path for paths in stores_of(cluster) for path in paths}) == 4


def test_messages_of_two_broker_sets_are_distinguished(tmp_path: Path) -> None:
    cluster = groups("containers", tmp_path)
    places = places_of(cluster)
    master = cluster.sets["broker-b"][0]
    message = MessageExt(
        topic="t",
        queue_id=3,
        queue_offset=7,
        physical_offset=0,
        body=body_of("k"),
        properties={"KEYS": "k"},
        store_host=pack_host(master.host, master.port),
    )
    got = found(message, places)
    assert (got.queue, got.offset, got.intact) == (places.of_name("broker-b", 3), 7, True)
    assert got.queue != found(message).queue == 3
    node = next(each for each in cluster.brokers if each.place.host == master.host)
    of_java = replace(message, store_host=pack_host(master.host, int(str(node.settings["listenPort"]))))
    assert found(of_java, places) == got
    # A message that the other set has instead counts as moved.
    elsewhere = replace(got, queue=places.of_name("broker-a", 3))
    sends = [Send("k", 0, 1, 10, got.queue, 7)]
    assert check(sends, [got]).counts[Kind.MOVED] == 0
    assert check(sends, [elsewhere]).counts[Kind.MOVED] == 1


def test_the_ten_scenarios_are_there_without_controllers() -> None:
    for scenarios in (CLASSIC, CONTAINERS):
        assert len(scenarios) == len(GROUP) - 1, "all but `busy`"
        assert not any("controller" in f"{each.title} {each.rounds}" for each in scenarios)
        assert all(each.read_aim_s is not None for each in scenarios)
    assert find("classic", "kill").aim_s is None
    assert find("containers", "kill").aim_s == 0.5
    with pytest.raises(LookupError):
        find("classic", "controllers-cut")


def test_plan_of_all_kinds() -> None:
    planned = list(plan(["ours", "java"], list(GROUPS), (2, 3), (), alone=True))
    assert [(system, kind, size) for system, kind, size, _ in planned] == [
        ("ours", "controllers", 2),
        ("ours", "controllers", 3),
        ("ours", "controllers", 0),
        ("ours", "classic", 2),
        ("ours", "containers", 2),
        ("java", "controllers", 2),
        ("java", "controllers", 0),
        ("java", "classic", 2),
        ("java", "containers", 2),
    ]
    named = list(plan(["ours"], list(GROUPS), (2,), ("namesrvs-cut", "kill"), alone=True))
    assert [[each.name for each in scenarios] for *_, scenarios in named] == [
        ["kill"],
        ["kill", "namesrvs-cut"],
        ["kill", "namesrvs-cut"],
    ]


def test_a_slave_may_act_from_a_fault_until_all_is_whole() -> None:
    rounds = [RoundResult("a", 1.0, 5.0, 0, whole_s=0.5), RoundResult("b", 9.0, 12.0, 0)]
    first, second = acting_spans(rounds, 1_000_000)
    assert first == (2_000_000, 6_500_000)
    assert second.from_us == 10_000_000 and second.to_us > 10**12, "it did not heal"


def result(groups: str = "containers") -> Result:
    made = Result("ours", 2, "kill", seed=1, quick=False, groups=groups, sent=3, acked=3)
    made.rounds = [RoundResult("kill -9 node-0", 1.0, 2.0, 0, whole_s=0.5)]
    reads = [[0, 1_000_000, 1_200_000, 3_000_000], [0, 900_000, 1_300_000, 1_400_000, 3_000_000]]
    take_times(made, [0, 1_000_000, 1_300_000, 3_000_000], 0, 3_000_000, [reads[1], reads[1]])
    assert made.longest_read_gap_s == pytest.approx(1.6)
    take_times(made, [0, 1_000_000, 1_300_000, 3_000_000], 0, 3_000_000, reads)
    return made


def test_the_longest_time_without_a_read_is_that_of_the_worse_set(tmp_path: Path) -> None:
    made = result()
    assert made.longest_read_gap_s == pytest.approx(1.8)
    assert report.aim_met(made) is False
    assert "without a read 1.80 s" in report.line(made)
    report.write(tmp_path / "results.json", [made])
    assert report.read(tmp_path / "results.json") == [made]


def test_a_pair_whose_master_is_killed_has_an_aim_for_reads_only() -> None:
    made = result("classic")
    made.rounds[0].longest_gap_s, made.rounds[0].longest_read_gap_s = 9.0, 0.4
    assert report.aim_met(made) is True
    made.rounds[0].longest_read_gap_s = None
    assert report.aim_met(made) is False


def test_kinds_have_tables_of_their_own(tmp_path: Path) -> None:
    page = tmp_path / "chaos.md"
    page.write_text(f"{BEGIN}\nolder\n{END}\n{FIXED_BEGIN}\nold\n{FIXED_END}\n")
    write_page(page, tmp_path, [result(), result("classic")])
    text = page.read_text()
    assert "older" in text and "\nold\n" not in text and "controllers:" not in text
    assert "BatonMQ, two containers crosswise" in text and "BatonMQ, a pair without controllers" in text
    assert "| a node is killed | 0.5 s / 0.5 s | 1.70 s / 1.80 s / 0.50 s |" in text
    assert "| a replica is killed | – / 0.5 s |" in text
    assert {each.name for each in tmp_path.glob("*.png")} == {"chaos-classic.png", "chaos-containers.png"}
