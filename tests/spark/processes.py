"""Processes that tests of Spark kill: a driver, its JVM, its Python workers."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Process:
    pid: int
    parent: int
    command: str


def processes() -> list[Process]:
    """All processes of this machine."""
    found = []
    for directory in Path("/proc").iterdir():
        if not directory.name.isdigit():
            continue
        try:
            command = (directory / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
            fields = (directory / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        found.append(Process(int(directory.name), int(fields[1]), command))
    return found


def descendants(root: int) -> list[Process]:
    """Of a process, which is not among them."""
    everything = processes()
    known, grown = {root}, True
    while grown:
        more = {process.pid for process in everything if process.parent in known} - known
        known |= more
        grown = bool(more)
    return [process for process in everything if process.pid in known and process.pid != root]


@dataclass
class Job:
    """A driver, which may be started again."""

    command: list[str]
    log: Path
    starts: int = 0
    failures: int = 0
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.starts += 1
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log, process_group=0)

    def kill(self) -> None:
        """The driver with its JVM and workers; nothing of it may go on."""
        assert self.process is not None
        victims = [process.pid for process in descendants(self.process.pid)]
        for pid in [self.process.pid, *victims]:
            kill(pid)
        self.process.wait()

    def stop(self, timeout_s: float) -> int:
        """Ask the driver to end, and return its exit code. Raises `subprocess.TimeoutExpired`."""
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(timeout_s)

    def workers(self) -> list[int]:
        """Python processes that run tasks, or a step of the driver."""
        assert self.process is not None
        return [p.pid for p in descendants(self.process.pid) if "pyspark.daemon" in p.command]


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has ended by itself
        os.kill(pid, signal.SIGKILL)
