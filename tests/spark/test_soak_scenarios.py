"""The soak repeats its scenarios with other seeds until its time is up, and says what was wrong."""

from __future__ import annotations

import time
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import click
import pytest

from tests.chaos.check import Verdict
from tests.chaos.results import Result, RoundResult
from tests.chaos.scenarios import GROUP
from tests.spark.soak.__main__ import Soak, chosen
from tests.spark.soak.compare import Kind
from tests.spark.soak.stream import Stream


def soak(path: Path, minutes: float) -> Soak:
    wanted = [scenario for scenario in GROUP if scenario.name in ("kill", "hang")]
    return Soak(5, wanted, time.monotonic() + 60 * minutes, path, quick=True, replicas=2)


def result(name: str) -> Result:
    return Result("ours", 2, name, 5, True, rounds=[RoundResult("kill -9 broker-0", 1.0, 2.0, 0, 0.5)])


def stream(verdict: Verdict, *failures: str, compared: bool = True) -> Stream:
    table = SimpleNamespace(rows=1, batches=1, files=1, delay_ms=lambda share: 1_000 * share)
    found: Any = SimpleNamespace(verdict=verdict, failures=list(failures), restarts={}, table=None)
    if compared:
        found.table = table
    return cast(Stream, found)


def test_each_pass_has_another_seed_and_topics_of_its_own(tmp_path: Path) -> None:
    names = [scenario.name for scenario in islice(soak(tmp_path, 1).scenarios(), 5)]
    assert names == ["kill-5", "hang-5", "kill-6", "hang-6", "kill-7"]


def test_no_scenario_begins_when_the_time_is_up_but_one_is_run(tmp_path: Path) -> None:
    run = soak(tmp_path, 0)
    names = []
    for scenario in run.scenarios():
        names.append(scenario.name)
        run.results.append(result(scenario.name))
    assert names == ["kill-5"]


def test_everything_that_is_wrong_is_named(tmp_path: Path) -> None:
    run = soak(tmp_path, 0)
    run.results.append(result("kill-5"))
    assert run.wrong(stream(Verdict())) == []
    verdict = Verdict()
    verdict.violated(Kind.LOST, "k-1 at 0/3")
    (text,) = run.wrong(stream(verdict))
    assert "lost" in text and "k-1 at 0/3" in text
    assert run.wrong(stream(Verdict(), "the query ended by itself")) == ["the query ended by itself"]
    (text,) = run.wrong(stream(Verdict(), compared=False))
    assert "not compared" in text
    run.results[0].violations, run.results[0].examples = {"hole": 1}, {"hole": ["0/7"]}
    assert run.wrong(stream(Verdict())) == ["kill-5: 1 hole: 0/7"]


def test_scenarios_are_chosen_by_name() -> None:
    option: Any = None
    assert chosen(option, option, None) == list(GROUP)
    assert [scenario.name for scenario in chosen(option, option, "hang,kill")] == ["kill", "hang"]
    with pytest.raises(click.BadParameter, match="no of-nothing; there are: kill"):
        chosen(option, option, "kill,of-nothing")
