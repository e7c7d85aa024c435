"""SIGTERM while a program loads its modules: an orderly stop like any other, not a death by the signal."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from batonmq.demo.ports import free_ports

PROGRAMS = ("namesrv", "controller", "broker", "container")


def handles_sigterm(pid: int) -> bool:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (signal.SIGTERM - 1) & 1)
    raise AssertionError("no SigCgt")


def configured(name: str, directory: Path) -> Path:
    conf = directory / "program.conf"
    lines = {"listenPort": 0, "bindAddress": "127.0.0.1"}
    match name:
        case "controller":
            lines = {
                "controllerDLegerGroup": "g",
                "controllerDLegerPeers": f"n0-127.0.0.1:{free_ports(1)[0]}",
                "controllerDLegerSelfId": "n0",
                "controllerStorePath": directory / "controller",
            }
        case "broker":
            lines |= {"storePathRootDir": directory / "store", "brokerIP1": "127.0.0.1"}
        case "namesrv":
            lines |= {"kvConfigPath": directory / "kv.json"}
    conf.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
    return conf


FIRST = """
import signal, sys
sys.argv = [sys.argv[1], sys.argv[2]]
import batonmq.cli
caught = signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
print(caught, "click" in sys.modules or "asyncio" in sys.modules)
"""


@pytest.mark.parametrize(
    ("program", "command", "caught"),
    [
        ("/usr/bin/batonmq", "broker", True),
        ("/lib/batonmq/__main__.py", "namesrv", True),
        ("batonmq", "admin", False),
        ("pytest", "broker", False),
    ],
)
def test_the_signals_of_programs_are_caught_before_anything_else_is_loaded(
    program: str, command: str, caught: bool
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FIRST, program, command], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"{caught} False\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_signal_before_all_modules_are_loaded(name: str, number: signal.Signals, tmp_path: Path) -> None:
    for later_s in (0, 0.1, 0.25, 0.5):
        with subprocess.Popen(
            [sys.executable, "-m", "batonmq", name, "-c", str(configured(name, tmp_path))],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        ) as program:
            try:
                while not handles_sigterm(program.pid):
                    assert program.poll() is None
                    time.sleep(0.001)
                time.sleep(later_s)
                program.send_signal(number)
                _, errors = program.communicate(timeout=15)
            finally:
                program.kill()
        assert program.returncode == 0, (later_s, errors)
        assert "Traceback" not in errors and "Aborted" not in errors
