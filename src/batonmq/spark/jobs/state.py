"""The directory in which a job records its progress."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from batonmq.spark.options import ClearError

WINDOW, RESTORE, MIRROR = "window.json", "restore.json", "mirror.json"
"""The file that a replay, a restore or a mirror keeps its parameters in."""
_ALL: Final = (WINDOW, RESTORE, MIRROR)
_LOCK: Final = "lock"


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
    """Make the directory of the job that keeps its parameters in the file `kept`, and keep other runs away.
    Two that begin together would each choose what to write, and each take the other's output for its own.
    Raises `InUse`, `OSError`.

    The end of this process, also by ``kill -9``, frees it. A file system without locks keeps nobody away. A
    job that ends before it keeps its parameters leaves no lock, and no directory that it has made."""
    check_job(state, kept)
    fd, locks, made = _locked(state)
    try:
        yield
    finally:
        if locks and not (state / kept).exists():  # while nobody else can have the lock
            (state / _LOCK).unlink(missing_ok=True)
            if made:
                with suppress(OSError):  # not empty
                    state.rmdir()
        os.close(fd)


def _locked(state: Path) -> tuple[int, bool, bool]:
    """The lock file, whether its file system has locks, whether the directory is new. Raises as `held`."""
    made = False
    while True:
        made = not state.exists() or made
        state.mkdir(parents=True, exist_ok=True)
        try:
            fd = os.open(state / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        except FileNotFoundError:  # another run has just ended, and removed the directory
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is(state / _LOCK, fd):
                return fd, True, made
            os.close(fd)  # another run has removed it; a third one may have locked a new file
        except BlockingIOError:
            os.close(fd)
            raise InUse(f"{state} is in use by another run; begin again when that has ended") from None
        except OSError:
            return fd, False, made


def _is(path: Path, fd: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(fd))
    except FileNotFoundError:
        return False
