"""Small files that are replaced as a whole: a reader sees the old contents or the new, also after a crash.

`reason` describes a failure of the file system in one line."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path


def write_beside(path: Path, data: bytes, *, private: bool = False) -> Path:
    """Write `data` durably to a file beside `path`, with its permissions, and return it for renaming.

    If `path` does not exist, the file is readable by its owner only (`private`) or as the umask allows.
    Blocks; raises `OSError`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(path.name + ".tmp")
    beside.unlink(missing_ok=True)  # left by a crash, perhaps with other permissions
    mode: int | None = None
    with contextlib.suppress(FileNotFoundError):
        mode = stat.S_IMODE(path.stat().st_mode)
    # Nobody may open it between its creation and the right permissions.
    fd = os.open(
        beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666 if mode is None and not private else 0o600
    )
    with os.fdopen(fd, "wb") as file:
        if mode is not None:
            os.fchmod(fd, mode)
        file.write(data)
        file.flush()
        os.fsync(fd)
    return beside


def sync_directory(path: Path) -> None:
    """Make names in `path` durable. Blocks; raises `OSError`."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def replace_file(path: Path, data: bytes, *, private: bool = False) -> None:
    """`write_beside`, renamed over the file. Blocks; raises `OSError`."""
    write_beside(path, data, private=private).replace(path)
    sync_directory(path.parent)


def reason(error: OSError) -> str:
    """Path, if known, and the system's message: for a log line of one line."""
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{error.strerror or error}"
