"""SIGTERM while a broker recovers a long log: the stop does not wait for the end of the recovery, and nothing
is lost."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.integration.container.files import BrokerConf
from tests.integration.group import Group

pytestmark = pytest.mark.pure

ENTERS = "recovers now"
SLOW = f"""
import sys, time
import batonmq.store.store as store
recover = store.recover
def slowly(log, *args, **keys):
    if {{name!r}} in str(log.files.directory):
        print("{ENTERS}", file=sys.stderr, flush=True)
        time.sleep(60)
    return recover(log, *args, **keys)
store.recover = slowly
"""
"""What every Python process of the test runs first. `name`: of the stores whose recovery takes so long."""


def stop_while_recovering(directory: Path, name: str, *words: str, after: str = ENTERS) -> str:
    """Run a program, and stop it in the recovery when `after` is in its log. Returns the log."""
    site = directory / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(SLOW.format(name=name))
    path = directory / "slow.log"
    with path.open("wb") as log:
        program = subprocess.Popen(
            [sys.executable, "-m", "batonmq", *words],
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": f"{site}:{os.environ.get('PYTHONPATH', '')}"},
        )
    try:
        deadline = time.monotonic() + 20
        while not all(text in path.read_text() for text in (ENTERS, after)):
            assert program.poll() is None and time.monotonic() < deadline, path.read_text()
            time.sleep(0.01)
        program.send_signal(signal.SIGTERM)
        code = program.wait(6)
    finally:
        program.kill()
        program.wait()
    said = path.read_text()
    assert code == 0 and "Traceback" not in said, said
    return said


async def test_a_stop_while_the_log_is_recovered_is_taken_at_once_and_loses_nothing(tmp_path: Path) -> None:
    group = Group(tmp_path)
    group.start()
    try:
        await group.serving()
        await group.send(200, size=2_000)
        group.broker.kill()
        conf = str(group.broker.config_path)
        said = await asyncio.to_thread(stop_while_recovering, tmp_path, "store", "broker", "-c", conf)
        assert "stopped before it had recovered its store; the next start recovers it" in said
        await asyncio.to_thread(group.broker.start)
        group.pids[group.broker.name] = group.broker.pid
        await group.serving()
        await group.check()
    finally:
        group.cluster.stop()


@pytest.mark.parametrize("processes", [1, 2])
def test_a_container_stops_while_one_of_its_brokers_recovers(tmp_path: Path, processes: int) -> None:
    serves, recovers = (BrokerConf(tmp_path, name) for name in ("serves", "recovers"))
    conf = tmp_path / "container.conf"
    conf.write_text(
        f"listenPort=0\nbindAddress=127.0.0.1\ncontainerProcesses={processes}\n"
        f"brokerConfigPaths={serves.path}:{recovers.path}\n"
    )
    stop_while_recovering(
        tmp_path, str(recovers.store), "container", "-c", str(conf), after="[serves-0] boot success"
    )
    assert (serves.store / "checkpoint").exists()
    assert not (serves.store / "abort").exists()
