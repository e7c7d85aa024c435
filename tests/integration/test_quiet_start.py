"""A new cluster starts without a line that would alarm somebody: nothing has gone wrong."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from batonmq.admin.main import admin
from batonmq.demo.cluster import LocalCluster

ALARMING = re.compile(r" (WARNING|ERROR|CRITICAL) |Traceback| object at 0x")


def in_sync(cluster: LocalCluster) -> int:
    words = [
        "getSyncStateSet",
        "-a",
        ";".join(cluster.controller_addresses),
        "-b",
        cluster.broker_name,
        "--json",
    ]
    done = CliRunner().invoke(admin, words)
    return sum(row["inSync"] for row in json.loads(done.output)) if done.exit_code == 0 else 0


@pytest.mark.parametrize("at_once", [False, True], ids=["one after the other", "all at once"])
def test_a_fresh_cluster_starts_without_alarm(tmp_path: Path, at_once: bool) -> None:
    settings = {"mappedFileSizeCommitLog": 16 << 20, "maxHashSlotNum": 1_000, "maxIndexNum": 5_000}
    cluster = LocalCluster(tmp_path, replicas=3, controllers=1, broker_settings=settings)
    try:
        if at_once:
            for program in cluster.programs:
                program.start(wait=False)
            for program in cluster.programs:
                program.wait_ready()
        else:
            cluster.start()
        deadline = time.monotonic() + 20
        while in_sync(cluster) < 3:
            assert time.monotonic() < deadline, "the replicas do not come into sync"
            time.sleep(0.1)
        alarms = [
            f"{program.name}: {line}"
            for program in cluster.programs
            for line in program.log_path.read_text().splitlines()
            if ALARMING.search(line)
        ]
    finally:
        codes = cluster.stop()
    assert not alarms, "\n".join(alarms)
    assert set(codes.values()) == {0}
