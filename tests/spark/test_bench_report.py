"""`batonmq spark bench-report`, on figures made by hand and on those that the benchmarks write."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks import acting, bench_spark_kafka, report
from benchmarks.bench_spark import Measured
from benchmarks.catchup import CatchUp
from benchmarks.clusters import JAVA, OURS
from benchmarks.controller.figures import figures_of as controller_figures
from benchmarks.failover import Failover
from benchmarks.figures import figures_of
from benchmarks.kinds import Timers
from benchmarks.load import Throughput
from benchmarks.startup import Startup
from click.testing import CliRunner, Result

from batonmq.spark.bench_page import tables, verdict
from batonmq.spark.jobs import bench
from batonmq.spark.jobs.bench import Figure, Reached, as_json, as_line
from batonmq.spark.main import spark

VERBS = ("namesrv", "controller", "broker")


def figure(system: str, *passes: float, name: str = "messages", unit: str = "messages/s") -> Figure:
    return Figure(benchmark="send", figure=name, unit=unit, system=system, passes=list(passes))


def written(path: Path, *figures: Figure) -> Path:
    path.write_text(json.dumps(as_json(figures)))
    return path


def reached(session, *paths: Path) -> dict[tuple[str, str], Reached]:
    found = bench.measure(session, bench.read(paths))
    return {(each.figure, each.system): each for each in found}


def test_passes_of_all_runs_are_joined_and_compared_within_each_run(session, tmp_path):
    # The machine was half as fast in the second run: ratios of passes do not show it, all passes together do.
    paths = [
        written(tmp_path / "one.json", figure(OURS, 200, 240, 260), figure(JAVA, 100, 120, 100)),
        written(tmp_path / "two.json", figure(JAVA, 50, 50), figure(OURS, 90, 110)),
        written(tmp_path / "ours.json", figure(OURS, 500), figure(OURS, 3, name="start", unit="s")),
    ]
    found = reached(session, *paths)
    assert list(found) == [("messages", JAVA), ("messages", OURS), ("start", OURS)]
    ours, java = found["messages", OURS], found["messages", JAVA]
    assert (ours.runs, ours.values) == (3, bench.Spread(6, 220, 90, 500))
    assert (java.runs, java.values) == (2, bench.Spread(5, 100, 50, 120))
    (ratio,) = ours.ratios
    assert (ratio.peer, ratio.paired, ratio.values.count) == (JAVA, True, 5)
    assert (ratio.values.median, ratio.values.least, ratio.values.greatest) == (2.0, 1.8, 2.6)
    assert java.ratios == found["start", OURS].ratios == ()
    assert (
        verdict(list(found.values()), 3) == "2 figures of 3 files, 1 beside a peer, 1 of them pass by pass."
    )
    (table,) = tables(list(found.values()))
    assert table.rows[1] == ("messages", OURS, "3", "6", "220 (90 … 500) messages/s", "2.00 (1.80 … 2.60)")


def test_other_numbers_of_passes_are_compared_by_medians(session, tmp_path):
    uneven = written(tmp_path / "a.json", figure(OURS, 10, 20, 30), figure(JAVA, 100, 300))
    (ratio,) = reached(session, uneven)["messages", OURS].ratios
    assert (ratio.paired, ratio.values) == (False, bench.Spread(1, 0.1, 0.1, 0.1))
    # No run has both.
    paths = [written(tmp_path / "b.json", figure(OURS, 30)), written(tmp_path / "c.json", figure(JAVA, 10))]
    (ratio,) = (ours := reached(session, *paths)["messages", OURS]).ratios
    assert (ratio.paired, ratio.values.median) == (False, 3)
    assert tables([ours])[0].rows[0][-1] == "3.00, of medians"


def test_nothing_is_compared_with_zero(session, tmp_path):
    path = written(tmp_path / "a.json", figure(OURS, 1, 4), figure(JAVA, 0, 2), figure("Kafka", 0))
    by_peer = {ratio.peer: ratio for ratio in reached(session, path)["messages", OURS].ratios}
    assert by_peer[JAVA].values == bench.Spread(1, 2, 2, 2)
    assert "Kafka" not in by_peer


def test_lines_that_were_appended_are_further_runs(session, tmp_path):
    path = tmp_path / "lines.jsonl"
    lines = [figure(OURS, 20), figure(JAVA, 10), figure(OURS, 60), figure(JAVA, 20)]
    path.write_text("\n".join(map(as_line, lines)) + "\n\n")
    ours = reached(session, path)["messages", OURS]
    assert (ours.runs, ours.values.count) == (2, 2)
    assert (ours.ratios[0].values.least, ours.ratios[0].values.greatest) == (2, 3)
    (tmp_path / "one.jsonl").write_text(as_line(lines[0]))
    assert len(bench.read([tmp_path / "one.jsonl"])) == 1


def ran(*arguments: object) -> Result:
    return CliRunner().invoke(spark, ["bench-report", *map(str, arguments)])


def test_the_command_writes_a_page(session, tmp_path):
    one = written(
        tmp_path / "one.json", figure(OURS, 200, 240), figure(JAVA, 100, 120), figure(OURS, 0, name="lost")
    )
    done = ran(one, one, "--to", tmp_path / "pages" / "bench.html")
    assert done.exit_code == 0, done.output
    assert "2 figures of 1 file, 1 beside a peer, 1 of them pass by pass." in done.stdout
    page = (tmp_path / "pages" / "bench.html").read_text()
    assert page.count("<svg") == 1 and "2.00 (2.00 … 2.00)" in page
    result = json.loads(ran(one, "--json").stdout)
    assert [(each["figure"], each["system"]) for each in result["figures"]] == [
        *(("messages", JAVA), ("messages", OURS), ("lost", OURS))
    ]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is empty"),
        ("{", "is not JSON: Input data was truncated"),
        ('{"throughput": {}}', "has no figures of a benchmark: write it again"),
        ("[1]", "has no figures of a benchmark: write it again"),
        ('{"figures": []}', "Expected `array` of length >= 1 - at `$.figures`"),
        ('{"figures": [{"benchmark": "a"}]}', "missing required field `figure` - at `$.figures[0]`"),
        ('{"figure": "a", "benchmark": 1}', "Expected `str`, got `int` - at `$.benchmark`"),
        (
            as_line(figure(OURS, 1)) + "\n" + as_line(figure(OURS, 1.5)).replace("1.5", '"fast"'),
            ", line 2, is not a figure of a benchmark: Expected `float`, got `str` - at `$.passes[0]`",
        ),
    ],
)
def test_a_bad_file_is_named_in_one_line(tmp_path, text, why):
    path = tmp_path / "figures.json"
    path.write_text(text)
    done = ran(path)
    assert done.exit_code == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"Error: {path}") and why in line


def test_a_missing_file_is_named_in_one_line(tmp_path):
    done = ran(tmp_path / "none.json")
    assert (done.exit_code, done.stderr) == (1, f"Error: {tmp_path}/none.json: No such file or directory\n")


def test_the_figures_of_the_benchmarks_are_complete(tmp_path):
    caught = CatchUp(900, 3, 5, 1, 2, 1.5, 4, 9, 100, 0)
    figures = report.Figures(
        replicas=3,
        throughput={"send": {OURS: Throughput([1, 2], [1.5], 0.5, 0.9, 0, {"broker-0": 10, "broker-1": 5})}},
        timers={"timer": {JAVA: Timers([100], [5], [9], [12], cpu_us=[{"broker-0": 7}])}},
        failover={"failover": {OURS: Failover([20, 30], [21, 31], 0)}},
        startup={OURS: Startup(dict.fromkeys(VERBS, 0.5), 0.7, dict.fromkeys(VERBS, 40), 3)},
        catchup={OURS: {"afresh": [caught], "plain": [caught]}},
    )
    path = tmp_path / "figures.json"
    path.write_text(json.dumps(figures.as_json() | as_json(figures_of(figures))))
    assert report.Figures.load(path, 3) == figures
    found = {(each.figure.figure, each.figure.unit): each.figure for each in bench.read([path])}
    assert {each.benchmark for each in found.values()} == {"benchmarks, 3 replicas"}
    sent = report.LOADS["send"]
    assert found[f"{sent}: messages", "messages/s"].passes == [1.5]
    assert found[f"{sent}: processor time a message, all brokers", "µs"].passes == [15]
    assert found[report.TIMED, "messages/s"].system == JAVA
    assert found["kill -9 of the master → first acknowledged send", "ms"].passes == [20, 30]
    assert found[f"{report.CATCHUPS['plain']}: copied", "MB/s"].passes == [300]
    assert len(found) == 4 + 5 + 2 + 7 + 4 + 3
    assert report.markdown(figures).count("\n| ") > 10

    times = acting.Times(locks_ms=[10, 20])
    assert acting.figures_of({JAVA: {"kill": times}}) == [
        Figure(benchmark="acting", figure="kill: locks", unit="ms", system=JAVA, passes=[10, 20])
    ]
    passes = [Measured(1000, {"Spark": 2, "broker": 1}), Measured(2000, {"Spark": 1, "broker": 1})]
    kafka = bench_spark_kafka.figures_of(dict.fromkeys(bench_spark_kafka.LABELS, passes), "kafka")
    assert len({(each.figure, each.system) for each in kafka}) == 2 * len(bench_spark_kafka.LABELS)
    assert kafka[0].passes == [1000, 2000] and kafka[1].passes == [3, 2]
    rates = {"rounds": [{"per_s": 9, "p50_ms": 1, "p99_ms": 2}, {"per_s": 8, "p50_ms": 1, "p99_ms": 2}]}
    found_by_controllers = {"load": {"Java jRaft": {"writes": rates}}, "kill": {"ms": [400]}}
    assert [each.passes for each in controller_figures(found_by_controllers)] == [
        [9, 8],
        [1, 1],
        [2, 2],
        [400],
    ]
