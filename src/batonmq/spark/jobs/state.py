"""The directory in which a job remembers what is done."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from batonmq.spark.options import ClearError

WINDOW, RESTORE, MIRROR = "window.json", "restore.json", "mirror.json"
"""The file that a replay, a restore or a mirror keeps its parameters in."""
_ALL: Final = (WINDOW, RESTORE, MIRROR)


class InUse(ClearError):
    """The directory is another run's, or another job's; the text has the reason."""


def check_job(state: Path, kept: str) -> None:
    """Raises `InUse` if a job of another kind than the one that keeps its parameters in `kept` has the
    directory."""
    for other in _ALL:
        if other != kept and (state / other).exists():
            raise InUse(f"{state} belongs to another job, which keeps {other} there; give each its directory")


@contextmanager
def held(state: Path, kept: str) -> Iterator[None]:
    """Make the directory of the job that keeps its parameters in the file `kept`, and keep other runs away:
    two that begin together would each choose what to write, and take what the other one has written for
    theirs. Raises `InUse`, `OSError`.

    The end of this process, also by ``kill -9``, frees it. A file system without locks keeps nobody away."""
    check_job(state, kept)
    state.mkdir(parents=True, exist_ok=True)
    fd = os.open(state / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InUse(f"{state} is in use by another run; begin again when that has ended") from None
        except OSError:
            pass
        yield
    finally:
        os.close(fd)
