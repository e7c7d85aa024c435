"""A run of RocketMQ's tests goes on behind a JVM that ended early."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.interop.upstream import run as running
from tests.interop.upstream.cluster import RunningCluster
from tests.interop.upstream.run import Run, run_classes

P = "org.apache.rocketmq.test."
NOWHERE = RunningCluster("127.0.0.1:1", {"a": "127.0.0.1:2"}, [])
JVM = """
import os, sys
for name in sys.argv[4:]:
    print(f"PASS {name}#first 5", flush=True)
    if name.endswith("DiesIT"):
        os._exit(3)
    if name.endswith("ExitsIT"):
        os._exit(0)
    if name.endswith("SlowIT"):
        print(f"FAIL {name}#second 90000 TestTimedOutException: test timed out", flush=True)
    print("NOTE", f"{name}#first", "a refused key", flush=True)
    print("DONE", name, flush=True)
    if name.endswith("SlowIT"):
        os._exit(75)
print("a line without meaning")
"""
"""Stands in for Runner.java: its arguments are the class name of the runner, two limits and the classes."""


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> object:
    monkeypatch.setattr(running, "java_command", lambda *_: [sys.executable, "-c", JVM])

    def start(*names: str) -> tuple[Run, list[str]]:
        shown: list[str] = []
        classes = [P + name for name in names]
        limits = {"method_limit_s": 1, "class_limit_s": 1}
        found = Run()
        run_classes(classes, NOWHERE, tmp_path, show=shown.append, run=found, **limits)
        return found, shown

    return start


def test_classes_behind_a_slow_test_run_in_another_jvm(run) -> None:  # type: ignore[no-untyped-def]
    found, shown = run("AIT", "SlowIT", "BIT")
    words = {name: each.word for name, each in found.outcomes.items()}
    assert words == {
        "AIT#first": "PASS",
        "SlowIT#first": "PASS",
        "SlowIT#second": "FAIL",
        "BIT#first": "PASS",
    }
    assert len(found.notes) == 3
    assert [line for line in shown if line.startswith("DONE")] == [
        f"DONE {P}{n}" for n in ("AIT", "SlowIT", "BIT")
    ]


def test_a_class_that_ends_its_jvm_fails_and_the_others_run(run) -> None:  # type: ignore[no-untyped-def]
    found, _ = run("DiesIT", "BIT")
    assert found.outcomes["DiesIT#first"].word == "PASS"
    assert found.outcomes["DiesIT#*"].word == "FAIL" and "ended with 3" in found.outcomes["DiesIT#*"].reason
    assert found.outcomes["BIT#first"].word == "PASS"


def test_a_test_that_exits_the_jvm_does_not_stop_the_run(run) -> None:  # type: ignore[no-untyped-def]
    found, _ = run("ExitsIT", "BIT")
    assert found.outcomes["ExitsIT#*"].word == "FAIL"
    assert found.outcomes["BIT#first"].word == "PASS"
