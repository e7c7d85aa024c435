"""The system lets a program start no more threads, as when ``pids.max`` of its container is used up: it still
stops in order, and writes everything to disk."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.integration.test_early_signals import PROGRAMS, configured

REFUSING = """
import sys, threading, time
from pathlib import Path

def refuse(*_):
    raise RuntimeError("can't start new thread")

def watch():
    while not Path(sys.argv[-1] + ".refuse").exists():
        time.sleep(0.01)
    threading._start_new_thread = refuse
    print("refusing", flush=True)

threading.Thread(target=watch, daemon=True).start()
sys.argv[0] = "/usr/bin/batonmq"
from batonmq.cli.main import main
main()
"""


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_that_may_start_no_thread_stops_in_order(name: str, tmp_path: Path) -> None:
    conf = configured(name, tmp_path)
    with subprocess.Popen(
        [sys.executable, "-c", REFUSING, name, "-c", str(conf)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as program:
        try:
            assert program.stdout is not None
            assert "boot success" in program.stdout.readline()
            conf.with_name(conf.name + ".refuse").touch()
            assert program.stdout.readline() == "refusing\n"
            program.send_signal(signal.SIGTERM)
            _, errors = program.communicate(timeout=15)
        finally:
            program.kill()
    assert "Traceback" not in errors, errors
    assert program.returncode == 0
    assert not (tmp_path / "store" / "abort").exists()
