"""Spark's reports agree with what a chaos run measured: elections and gaps, round by round.

Run with ``pytest -m chaos``; needs what `make chaos` needs, and a Java runtime for Spark. CHAOS_OUT names the
output of an earlier run (`make chaos`), which is used instead of a short one.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.isolate import CannotIsolate, check_tools, unshare_command
from tests.chaos.results import BUCKET_S

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]
ROOT = Path(__file__).parents[2]
SCENARIOS = ("kill", "hang", "controllers-killed")
CLOCK_MS = 2
"""Two readings of the time, and rounding."""


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("java") is None:
        pytest.skip("Spark needs a JRE >= 17, and there is no java on PATH")
    if "CHAOS_OUT" in os.environ:
        return Path(os.environ["CHAOS_OUT"])
    try:
        check_tools()
        unshare_command()
    except CannotIsolate as error:
        pytest.skip(str(error))
    directory = tmp_path_factory.mktemp("chaos")
    # With this seed the quick scenarios kill a master, and another one hangs.
    command = [sys.executable, "-m", "tests.chaos", *SCENARIOS, "--quick", "--seed", "1"]
    command += ["--only", "ours", "--no-report", "--out", str(directory)]
    subprocess.run(command, check=True, cwd=ROOT, capture_output=True, text=True)
    return directory


def reported(directory: Path, job: str = "failover-report") -> dict[str, Any]:
    command = [sys.executable, "-m", "batonmq", "spark", job, "--dir", str(directory), "--json"]
    command += ["--master", "local[2]", "--conf", "spark.sql.shuffle.partitions=4"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def test_elections_and_gaps_are_those_of_the_run(out: Path) -> None:
    results = [
        entry
        for entry in json.loads((out / "results.json").read_text())["results"]
        if entry["system"] == "ours" and entry["replicas"] == 2
    ]
    report = reported(out / "ours-2")
    elections = report["elections"]
    outages = {
        (outage["broker_set"], outage["master_epoch"]): outage
        for outage in report["outages"]
        if outage["producer"] == "all producers"
    }

    epochs = [election["master_epoch"] for election in elections]
    assert epochs == list(range(1, len(epochs) + 1)), "an election is missing, or there twice"
    for before, after in pairwise(elections):
        assert after["old_master"] == before["new_master"]
    compared = killed = 0
    for entry in results:
        rounds = entry["rounds"]
        loaded = rounds[0]["wall_ms"] - 1000 * rounds[0]["struck_s"]
        # A round ends where the next one of the scenario strikes, the last one where the load ends.
        ends = [*(each["wall_ms"] for each in rounds[1:]), loaded + 1000 * BUCKET_S * len(entry["acks"])]
        for each, end in zip(rounds, ends, strict=True):
            begin, measured_ms = each["wall_ms"], 1000 * each["longest_gap_s"]
            own = [e for e in elections if begin - CLOCK_MS <= e["time_ms"] <= end]
            if entry["scenario"] == "kill" and own:
                killed += 1
                assert own[0]["before"] == [1, 2] and own[0]["after"] == [own[0]["new_master"]]
                assert own[0]["whole_ms"] is not None
            if not own:
                continue
            found = [outages[e["broker_set"], e["master_epoch"]] for e in own]
            if entry["scenario"] in ("kill", "hang"):
                # Here the gap of the round is that of its election. (Controllers may elect after a gap.)
                longest_ms = max(outage["gap_ms"] for outage in found)
                assert longest_ms >= measured_ms - CLOCK_MS, each["fault"]
                compared += 1
            for outage in found:
                # The time of the last election goes beyond the round, into the next scenario.
                if outage["began_us"] < 1000 * end and outage["ended_us"] > 1000 * begin:
                    assert outage["gap_ms"] <= measured_ms + CLOCK_MS, each["fault"]
    assert killed and compared


def test_gaps_of_histories_are_those_of_the_run(out: Path) -> None:
    report = reported(out, "chaos-report")
    assert report["lost"] == 0 and report["rounds"]
    assert not report["different"]
    for each in report["rounds"]:
        assert each["replicas"] == 0 or each["gap_s"] is not None, each["fault"]
