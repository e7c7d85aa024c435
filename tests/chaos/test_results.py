"""What a run leaves behind: results.json, and the page of the docs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.chaos import report
from tests.chaos.check import Kind, Verdict
from tests.chaos.ground import take_times
from tests.chaos.page import BEGIN, END, markdown, write_page
from tests.chaos.results import Result, RoundResult
from tests.chaos.scenarios import NO_PAUSE_S


def result(system: str = "ours", replicas: int = 2, scenario: str = "kill") -> Result:
    found = Result(system, replicas, scenario, seed=1, quick=False)
    found.rounds = [RoundResult("kill -9 broker-0", 1.0, 2.0, 0, whole_s=0.5)]
    take_times(found, [0, 500_000, 1_000_000, 1_700_000, 2_000_000, 3_000_000], 0, 3_000_000)
    verdict = Verdict(sent=8, acked=6, stored=7)
    found.take(verdict)
    return found


def test_times_of_a_round() -> None:
    found = result()
    assert found.longest_gap_s == pytest.approx(1.0)
    assert found.whole_s == 0.5
    assert sum(found.acks) == 6
    found.rounds.append(RoundResult("kill -9 broker-1", 3.0, 4.0, 0, whole_s=None))
    assert found.whole_s is None


def test_results_are_read_as_they_were_written(tmp_path: Path) -> None:
    results = [result(), result("java"), result("ours", 0, "leader-killed")]
    report.write(tmp_path / "results.json", results)
    assert report.read(tmp_path / "results.json") == results
    assert report.read(tmp_path / "none.json") == []
    assert json.loads((tmp_path / "results.json").read_text())["where"]


def test_later_results_take_the_place_of_earlier_ones() -> None:
    first, second, later = result(), result("java"), result()
    later.acked = 9
    assert report.join([first, second], [later]) == [later, second]


def test_the_page_gets_tables_and_plots(tmp_path: Path) -> None:
    bad = result("java")
    verdict = Verdict(acked=6)
    verdict.violated(Kind.LOST, "k1")
    bad.take(verdict)
    page = tmp_path / "chaos.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    write_page(page, tmp_path, [result(), bad, result("ours", 0, "leader-killed")])
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("after\n") and "old" not in text
    assert "| a replica is killed | 0.1 s | 1.00 s / 0.50 s | 1.00 s / 0.50 s |" in text
    assert "| **lost, overwritten or moved** | 0 | 1 |" in text
    assert "| messages acknowledged and checked | 6 | 6 |" in text
    assert "| changes that controllers granted | 6 | 0 |" in text
    for name in ("groups", "controllers"):
        assert (tmp_path / f"chaos-{name}.png").read_bytes().startswith(b"\x89PNG")
    (tmp_path / "other.md").write_text("no marks\n")
    with pytest.raises(ValueError, match="has no lines"):
        write_page(tmp_path / "other.md", tmp_path, [result()])


def test_a_violation_is_reported_with_its_example() -> None:
    bad = result()
    verdict = Verdict()
    verdict.violated(Kind.TAKEN_BACK, "k7 at 0/3, now nothing")
    bad.take(verdict)
    assert not bad.ok
    reported = list(report.violations([bad], verdict))
    assert reported == [
        "kill (ours, 2): taken_back × 1: k7 at 0/3, now nothing",
        "stores at the end: taken_back × 1: k7 at 0/3, now nothing",
    ]


def test_aims_are_those_of_two_replicas_of_ours() -> None:
    assert report.aim_met(result()) is False  # 1.0 s without acknowledgement, 0.5 s aimed at
    assert report.aim_met(result("java")) is None
    assert report.aim_met(result(replicas=3)) is None
    assert report.aim_met(result(scenario="hang")) is True


def test_no_figures_without_results() -> None:
    assert "| --- |" in markdown([])


def test_a_run_without_spark_has_no_page_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert report.write_html(tmp_path) == "no report.html: there are no results"
    report.write(tmp_path / "results.json", [result()])
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert report.write_html(tmp_path).startswith("no report.html: Spark needs a Java runtime")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    (tmp_path / "results.json").write_text("{")
    assert "Error: " in report.write_html(tmp_path) and not (tmp_path / "report.html").exists()


def test_results_name_their_scenario_and_its_aims() -> None:
    described = result()
    described.describe(report.scenario_of(described))
    assert (described.title, described.aim_s, described.read_aim_s) == ("a replica is killed", 0.1, None)
    of_three = result(replicas=3, scenario="controllers-killed")
    of_three.describe(report.scenario_of(of_three))
    assert (of_three.title, of_three.aim_s) == ("1, 2, 3 controllers killed", None)
    none_allowed = result(scenario="controllers-killed")
    none_allowed.describe(report.scenario_of(none_allowed))
    assert none_allowed.aim_s == NO_PAUSE_S


def of_seeds(*gaps: tuple[float, float | None]) -> list[Result]:
    """Results of one scenario: longest time without an acknowledgement, and until whole again."""
    found = []
    for seed, (gap_s, whole_s) in enumerate(gaps):
        one = Result("ours", 2, "hang", seed=seed, quick=True, acked=10)
        one.rounds = [RoundResult("SIGSTOP broker-0", 1.0, 2.0, 0, whole_s=whole_s, longest_gap_s=gap_s)]
        found.append(one)
    return found


def rows_of(results: list[Result]) -> list[tuple[object, ...]]:
    return list(zip(*(list(column.cells) for column in report.summary(results).columns), strict=True))


def test_several_seeds_are_summed_up() -> None:
    results = of_seeds((1.5, 0.1), (2.6, 0.3), (1.6, 0.2))
    assert rows_of(results) == [
        ("a replica hangs", "BatonMQ", "2", "2.5 s", "1.60 s", "2.60 s", "0.30 s", "2 of 3", "0")
    ]
    results[0].violations = {"lost": 2}
    assert rows_of(results)[0][-2:] == ("2 of 3", "[bold red]2[/]")
    assert rows_of(of_seeds((1.5, 0.1), (1.5, None)))[0][6:8] == ("never", "1 of 2")


def test_the_page_has_the_longest_times_of_several_seeds() -> None:
    text = markdown(of_seeds((1.5, 0.4), (2.6, 0.3)))
    assert "| a replica hangs | 2.5 s | 2.60 s / 0.40 s |" in text
    assert "| messages acknowledged and checked | 20 |" in text
    assert "Seed 0, 1;" in text
