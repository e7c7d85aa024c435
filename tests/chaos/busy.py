"""Programs that take processor time from the cluster."""

from __future__ import annotations

import subprocess
import sys


class BusyLoops:
    """Processes that compute and do nothing else."""

    def __init__(self) -> None:
        self._loops: list[subprocess.Popen[bytes]] = []

    def start(self, count: int) -> None:
        for _ in range(count):
            self._loops.append(subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]))

    def stop(self) -> None:
        """End all of them; harmless without any."""
        for loop in self._loops:
            loop.kill()
        for loop in self._loops:
            loop.wait()
        self._loops.clear()
