"""`batonmq spark chaos-report`, on results and histories made by hand."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from batonmq.spark.chaos_page import tables, verdict
from batonmq.spark.jobs import chaos, chaos_histories
from batonmq.spark.jobs.chaos_results import read
from batonmq.spark.main import spark
from tests.chaos.check import longest_gap_s

from .test_jobs_reports import SECOND, history, steady

START_MS = 1_795_613_225_000
START_US = START_MS * 1000
ROUND_S = (2.0, 12.0)
END_S = 20.0


def scenario(system: str = "ours", seed: int = 1, gaps: tuple[float, ...] = (3.0, 1.0), **more: Any) -> dict:
    """One entry of results.json: two rounds, 2 s and 12 s after the load began; it ended after 20 s."""
    rounds = [
        {
            "fault": f"kill -9 broker-{number}",
            "struck_s": struck_s,
            "healed_s": struck_s + 4,
            "wall_ms": START_MS + round(struck_s * 1000),
            "whole_s": 0.5 + number,
            "longest_gap_s": gap,
            "longest_read_gap_s": None,
            "deposed": "",
        }
        for number, (struck_s, gap) in enumerate(zip(ROUND_S, gaps, strict=False))
    ]
    entry = {"system": system, "replicas": 2, "scenario": "kill", "seed": seed, "quick": False}
    buckets = round(END_S / 0.1)
    return entry | {"rounds": rounds, "sent": 6, "acked": 5, "acks": [0] * buckets} | more


def acks(gaps: tuple[float, ...], step_us: int = 10_000) -> list[tuple[int, int | None]]:
    """Sends every 10 ms, and none acknowledged for so long after each fault."""
    rows: list[tuple[int, int | None]] = []
    last_us = START_US
    for struck_s, gap in zip(ROUND_S, gaps, strict=False):
        struck_us = START_US + round(struck_s * SECOND)
        rows += steady(last_us, struck_us + 1, step_us)
        last_us = struck_us + round(gap * SECOND)
    return [*rows, *steady(last_us, START_US + round(END_S * SECOND), step_us)]


def run(directory: Path, *entries: dict, seen: dict[str, tuple[float, ...]] | None = None) -> Path:
    """The output of a run. `seen`: system -> gaps of its history; without it those of results.json."""
    directory.mkdir(parents=True)
    (directory / "results.json").write_text(json.dumps({"where": "two processors", "results": entries}))
    for entry in entries:
        gaps = tuple(each["longest_gap_s"] for each in entry["rounds"])
        gaps = (seen or {}).get(entry["system"], gaps)
        place = directory / f"{entry['system']}-{entry['replicas']}"
        place.mkdir(exist_ok=True)
        history(place / f"history-{entry['scenario']}.parquet", acks(gaps))
    return directory


def measured(session, *directories: Path) -> chaos.Measured:
    return chaos.measure(session, [chaos.Run(path, read(path)) for path in directories])


def test_the_gaps_are_those_that_the_run_computes(session, tmp_path):
    rng = random.Random(7)
    expected = {}
    rounds, paths = [], {}
    for place in range(12):
        moments = sorted(rng.sample(range(START_US, START_US + 20 * SECOND), rng.choice((1, 2, 30, 400))))
        if place == 10:
            moments = [moment for moment in moments if moment > START_US + 5 * SECOND]
        if place == 11:
            moments = [moment for moment in moments if moment < START_US + 5 * SECOND] or [START_US + 1]
        path = history(tmp_path / f"p+{place} %41.parquet", [(moment - 1, moment) for moment in moments])
        paths[path.resolve()] = place
        for number, (start_s, end_s) in enumerate(((4, 11), (11, 20)), 1):
            start_us, end_us = START_US + start_s * SECOND, START_US + end_s * SECOND
            rounds.append((place, number, start_us, end_us))
            expected[place, number] = longest_gap_s(moments, start_us, end_us)
    frame = session.createDataFrame(rounds, "place int, number int, start_us bigint, end_us bigint")
    found = chaos_histories.gaps(chaos_histories.read_histories(session, paths), frame).collect()
    assert {(row["place"], row["number"]): row["gap_us"] / 1e6 for row in found} == pytest.approx(expected)


def test_several_runs_are_one_report(session, tmp_path):
    directories = [
        run(
            tmp_path / f"run {seed}",
            scenario("java", seed, (6.0, 5.0)),
            scenario("ours", seed, gaps, violations={"lost": seed - 1}, errors={"CallTimeout": 2}),
        )
        for seed, gaps in ((1, (0.5, 1.0)), (2, (2.0, 4.0)))
    ]
    found = measured(session, *directories)
    ours, java = found.summaries
    assert (ours.system, java.system) == ("ours", "java")
    assert (ours.seeds, ours.rounds, ours.acked, ours.sent) == ((1, 2), 4, 10, 12)
    assert ours.gap is not None and java.gap is not None and ours.whole is not None
    assert (ours.gap.median, ours.gap.p90, ours.gap.max) == pytest.approx((1.5, 4.0, 4.0))
    assert (java.gap.median, java.gap.p90, java.gap.max) == pytest.approx((5.5, 6.0, 6.0))
    assert (ours.whole.median, ours.whole.max, ours.never_whole) == (1.0, 1.5, 0)
    assert ours.reads is None
    assert (ours.violations, ours.errors, ours.lost) == ({"lost": 1}, {"CallTimeout": 4}, 1)
    assert len(found.rounds) == 8 and not found.different
    assert "was not kept. BatonMQ, 2 replicas, kill: lost × 1" in verdict(found, 2)
    assert "agree with results.json in 8 of 8 rounds" in verdict(found, 2)


@pytest.mark.parametrize("load_s", [0.0, 19.93])
def test_time_after_the_load_is_not_a_gap(session, tmp_path, load_s):
    """The timeline of results.json has whole buckets, the last of which the load did not fill."""
    entry = scenario(gaps=(0.03, 0.02), load_s=load_s)
    directory = run(tmp_path / "run", entry)
    rows = [row for row in acks((0.03, 0.02)) if row[0] < START_US + 19.93 * SECOND]
    history(directory / "ours-2" / "history-kill.parquet", rows)
    found = measured(session, directory)
    assert [each.gap_s for each in found.rounds] == pytest.approx([0.03, 0.02], abs=0.001)


@pytest.mark.parametrize("load_s", [0.0, END_S])
def test_a_gap_may_last_to_the_end_of_the_load(session, tmp_path, load_s):
    found = measured(session, run(tmp_path / "run", scenario(gaps=(3.0, 8.0), load_s=load_s)))
    assert found.rounds[1].gap_s == pytest.approx(8.0, abs=0.101)
    assert not found.different


def test_a_history_that_tells_something_else_is_named(session, tmp_path):
    found = measured(session, run(tmp_path / "run", scenario(gaps=(3.0, 1.0)), seen={"ours": (3.0, 2.5)}))
    (different,) = found.different
    assert (different.number, different.written_gap_s) == (2, 1.0)
    assert different.gap_s == pytest.approx(2.5)
    (table,) = [each for each in tables(found) if "differ" in each.title]
    assert table.rows[0][-2:] == ("2.50 s", "1.00 s")
    assert "in 1 of 2 rounds" in verdict(found, 1)
    assert any("acknowledgements, results.json has 5" in note for note in found.notes)


def test_a_round_without_a_history_has_the_gap_of_the_run(session, tmp_path):
    directory = run(
        tmp_path / "run", scenario(), scenario("java"), scenario(replicas=0, scenario="leader-killed")
    )
    (directory / "ours-2" / "history-kill.parquet").unlink()
    later = [(sent + 3600 * SECOND, acked + 3600 * SECOND) for sent, acked in acks((9.0, 9.0)) if acked]
    history(directory / "java-2" / "history-kill.parquet", later)
    found = measured(session, directory)
    assert [each.gap_s for each in found.rounds] == [None] * 6
    assert {each.gap.max for each in found.summaries if each.gap} == {3.0}
    assert [note.partition(" is ")[2][:13] for note in found.notes] == ["missing: its ", "of another ti"]


def test_reads_aims_and_rounds_that_never_became_whole(session, tmp_path):
    entry = scenario(title="a replica is killed", aim_s=0.1, read_aim_s=2.5)
    entry["rounds"][0] |= {"longest_read_gap_s": 0.25, "whole_s": None}
    (summary,) = (found := measured(session, run(tmp_path / "run", entry))).summaries
    assert (summary.title, summary.aim_s, summary.read_aim_s) == ("a replica is killed", 0.1, 2.5)
    assert summary.reads is not None and summary.reads.max == 0.25
    assert summary.never_whole == 1
    sends, others, *_ = tables(found)
    assert sends.rows[0][-1] == "0.1 s"
    assert others.rows[0][-1] == "never × 1"


def ran(*arguments: object) -> Result:
    return CliRunner().invoke(spark, ["chaos-report", *map(str, arguments)])


def test_the_command_writes_a_page_and_fails_if_anything_was_lost(session, tmp_path):
    good = run(tmp_path / "good", scenario(aim_s=0.5), scenario("java"))
    bad = run(tmp_path / "bad", scenario(seed=2, violations={"overwritten": 2}), seen={"ours": (3.0, 1.5)})
    done = ran("--dir", good, "--dir", good, "--to", tmp_path / "pages" / "page.html")
    assert done.exit_code == 0, done.output
    assert "Nothing acknowledged was lost: 10 messages, 4 rounds in 1 run." in done.stdout
    page = (tmp_path / "pages" / "page.html").read_text()
    assert page.count("<svg") == 1 and "aim" in page and "two processors" in page
    assert "history and results.json differ" not in page
    done = ran("--dir", good, "--dir", bad, "--json", "--to", tmp_path / "page.html")
    assert done.exit_code == 1
    result = json.loads(done.stdout)
    assert result["lost"] == 2 and len(result["rounds"]) == 6
    (different,) = result["different"]
    assert (different["directory"], different["number"]) == (str(bad), 2)
    assert "history and results.json differ" in (tmp_path / "page.html").read_text()


def test_a_bad_file_is_named_in_one_line(tmp_path):
    def said(directory: Path) -> str:
        done = ran("--dir", directory)
        assert done.exit_code == 1
        (line,) = done.stderr.splitlines()
        assert line.startswith(f"Error: {directory}/")
        return line

    assert "No such file" in said(tmp_path / "nothing")
    for number, (text, why) in enumerate(
        (
            ("{", "is not a results.json of 'make chaos': Input data was truncated"),
            ("{}", "missing required field `results`"),
            ('{"results": [{"system": 1}]}', "Expected `str`, got `int` - at `$.results[0].system`"),
        )
    ):
        directory = tmp_path / f"run-{number}"
        directory.mkdir()
        (directory / "results.json").write_text(text)
        assert why in said(directory)
    directory = run(tmp_path / "run", scenario())
    (directory / "ours-2" / "history-kill.parquet").write_bytes(b"PAR1 is how it begins, and then")
    assert "history-kill.parquet is not a Parquet file: " in said(directory)
