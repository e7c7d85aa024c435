"""A real directory whose disk fails: the error says where, though the system knows only a number."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from batonmq.common.files import reason
from batonmq.raft.disk import OsDisk

FULL = Path("/dev/full")


def write(disk: OsDisk) -> None:
    file = disk.open_append("log")
    try:
        file.write(b"x")
        file.sync()
    finally:
        file.close()


def shrink(disk: OsDisk) -> None:
    file = disk.open_append("log")
    file.write(b"x")
    file.sync()
    file.close()


CALLS: dict[str, tuple[str, Callable[[OsDisk], object], str]] = {
    "write": ("pwrite", write, "log"),
    "give room back": ("ftruncate", shrink, "log"),
    "truncate": ("ftruncate", lambda disk: disk.truncate("log", 0), "log"),
    "sync": ("fsync", lambda disk: disk.truncate("log", 0), "log"),
    "sync names": ("fsync", lambda disk: disk.sync_names(), ""),
    "lock": ("flock", lambda disk: disk.lock(), ""),
}


@pytest.mark.parametrize("code", [errno.EROFS, errno.EIO, errno.ENOSPC], ids=errno.errorcode.get)
@pytest.mark.parametrize("call", CALLS)
def test_an_error_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int
) -> None:
    def fails(fd: int, *_: object) -> int:
        raise OSError(code, os.strerror(code))

    (tmp_path / "log").write_bytes(b"before")
    disk = OsDisk(tmp_path, allocate_bytes=100)
    function, work, name = CALLS[call]
    open_before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(fcntl if function == "flock" else os, function, fails)
    with pytest.raises(OSError) as failed:
        work(disk)
    assert reason(failed.value) == f"{tmp_path / name}: {os.strerror(code)}"
    assert len(os.listdir("/proc/self/fd")) == open_before


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "log").symlink_to("/proc/self/mem")  # whose first page cannot be read: EIO
    with pytest.raises(OSError) as failed:
        OsDisk(tmp_path).read("log")
    assert reason(failed.value) == f"{tmp_path / 'log'}: Input/output error"


@pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")
def test_a_disk_that_is_full_is_named(tmp_path: Path) -> None:
    (tmp_path / "log").symlink_to(FULL)
    with pytest.raises(OSError) as failed:
        write(OsDisk(tmp_path))
    assert reason(failed.value) == f"{tmp_path / 'log'}: No space left on device"
