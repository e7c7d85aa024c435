"""Ctrl-C and SIGTERM in jobs that have nothing to put in order: one line, and no JVM that stays."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from batonmq.demo.history import History

from .conftest import BROKER, Topics, bodies
from .processes import Process, descendants, kill
from .test_cli_jobs import FAST, commit

pytestmark = pytest.mark.timeout(240)


def is_jvm(process: Process) -> bool:
    return "pyspark-shell" in process.command


def is_worker(process: Process) -> bool:
    """Spark asks a worker for the sources that there are, and plans with others, before it reads."""
    return "pyspark.daemon" in process.command and "lookup_data_sources" not in process.command


def is_there(process: Process) -> bool:
    return Path(f"/proc/{process.pid}").exists()


def stopped(number: signal.Signals, once: Callable[[Process], bool], *job: object) -> None:
    """Run a job, and once it has such a process, send its process group the signal, as a terminal does."""
    running = subprocess.Popen(
        [sys.executable, "-m", "batonmq", "spark", *map(str, job), *FAST],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    seen: list[Process] = []
    try:
        while not any(once(process) for process in seen):
            assert running.poll() is None
            seen = descendants(running.pid)
            time.sleep(0.02)
        os.killpg(running.pid, number)
        said, errors = running.communicate(timeout=60)
        assert running.returncode == 128 + number and not said, errors
        assert not re.search(r"Traceback|^\tat ", errors, re.MULTILINE), errors
        assert [line for line in errors.splitlines() if line.startswith("Error")] == [
            f"Error: stopped by {number.name}"
        ]
        deadline = time.monotonic() + 5  # a process that the JVM was starting may outlive it for a moment
        while left := [process for process in seen if is_jvm(process) and is_there(process)]:
            assert time.monotonic() < deadline, left
            time.sleep(0.02)
    finally:
        running.kill()
        running.wait()
        for process in filter(is_jvm, seen):
            kill(process.pid)


@pytest.fixture
def topic(topics: Topics) -> str:
    made = topics.make(queues=2)
    topics.fill(made, {0: bodies("a", 20_000), 1: bodies("b", 20_000)})
    return made


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_job_that_reads(topics, topic, number):
    stopped(number, is_worker, "rollup", "-n", topics.namesrv, "-t", topic)


def test_other_jobs(topics, topic, tmp_path):
    commit(topics.namesrv, f"billing-{topic}", topic, {0: 5, 1: 10})
    stopped(signal.SIGINT, is_worker, "lag", "-n", topics.namesrv, "-t", topic, "--contents")
    history = History()
    for i in range(20_000):
        history.acked(f"a{i}", f"{BROKER}:0", i, i, i + 1)
    history.write(tmp_path / "history.parquet")
    audit = ("audit", "-n", topics.namesrv, "-t", topic, "--history", tmp_path / "history.parquet")
    stopped(signal.SIGINT, is_worker, *audit)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_while_spark_starts(topics, topic, number):
    """A JVM whose launcher Ctrl-C had interrupted stayed for ever."""
    stopped(number, is_jvm, "skew", "-n", topics.namesrv, "-t", topic)
