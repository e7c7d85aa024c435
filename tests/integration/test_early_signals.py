"""SIGTERM while a program loads its modules: an orderly stop like any other, not a death by the signal."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

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
                "controllerDLegerPeers": "n0-127.0.0.1:0",
                "controllerDLegerSelfId": "n0",
                "controllerStorePath": directory / "controller",
            }
        case "broker":
            lines |= {"storePathRootDir": directory / "store", "brokerIP1": "127.0.0.1"}
        case "namesrv":
            lines |= {"kvConfigPath": directory / "kv.json"}
    conf.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
    return conf


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
                maps = Path(f"/proc/{program.pid}/maps").read_text()
                assert later_s or "uvloop" not in maps, "only now that all modules are loaded"
                time.sleep(later_s)
                program.send_signal(number)
                _, errors = program.communicate(timeout=15)
            finally:
                program.kill()
        assert program.returncode == 0, (later_s, errors)
        assert "Traceback" not in errors and "Aborted" not in errors
