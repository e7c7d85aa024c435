"""Signals that come while a program still loads its modules, which takes up to a second.

Nothing has been opened by then, so the program ends at once, with the exit code of a stop. Loaded before
everything else, so it imports little itself. Later the event loop takes the signals over.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

PROGRAMS = ("namesrv", "controller", "broker", "container")
"""The commands that serve until a signal."""


def catch_signals(arguments: Sequence[str]) -> None:
    """End at once on SIGTERM and SIGINT, if these are the command line of a program; a module that is only
    imported, for example by a test, changes nothing."""
    if len(arguments) < 2 or arguments[1] not in PROGRAMS:
        return
    if arguments[0].rpartition("/")[2] not in ("batonmq", "__main__.py"):
        return
    program = arguments[1]

    def end(number: int, frame: object) -> None:
        # Not an exception: a module that is being loaded might catch it.
        os.write(2, f"{program}: {signal.Signals(number).name} before it had started\n".encode())
        os._exit(0)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)


catch_signals(sys.argv)
