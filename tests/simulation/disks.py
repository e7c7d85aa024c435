"""Disks that lose what no fsync covers, and the other things programs get from the operating system.

What is durable is known from the calls of fsync themselves, whatever the program believes. Names of files
(creation, renaming, removal) are taken as durable at once.
"""

from __future__ import annotations

import errno
import itertools
import os
import random
import shutil
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from batonmq.broker.timer import layout
from batonmq.client import session
from batonmq.ha.autoswitch.epoch_file import EpochFile
from batonmq.raft.disk import AppendFile, OsDisk
from batonmq.store import mapped
from tests.simulation.host import current_host

SECTOR, PAGE = 512, 4096
WHEEL_SLOTS = 2_048
"""Slots of a timer wheel, so that a crash has less to copy."""
PAGED = ("commitlog", "consumequeue", "index", "timerlog", "timerwheel")
"""Directories whose files are written in place: a power cut leaves old and new pages side by side."""


class TrackedFile:
    """An append-only file that knows how much of it a power cut would leave."""

    def __init__(self, file: AppendFile, path: Path, synced: dict[str, int]) -> None:
        self._file, self._path, self._synced = file, path, synced

    def write(self, data: bytes) -> None:
        self._file.write(data)

    def sync(self) -> None:
        self._file.sync()
        self._synced[self._path.name] = self._path.stat().st_size

    def close(self) -> None:
        self._file.close()


class TrackedDisk(OsDisk):
    """A controller's directory; `synced` holds the durable size of each file that was appended to."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.directory = directory
        self.synced = {p.name: p.stat().st_size for p in directory.iterdir()}

    def open_append(self, name: str) -> AppendFile:
        self.synced.setdefault(name, 0)
        return TrackedFile(super().open_append(name), self.directory / name, self.synced)

    def rename(self, old: str, new: str) -> None:
        super().rename(old, new)
        if old in self.synced:
            self.synced[new] = self.synced.pop(old)


class World:
    """What programs get from the operating system and not from arguments: fsync, disk space, their pid."""

    def __init__(self) -> None:
        self.synced: dict[int, bytes] = {}
        """Inode -> the file's bytes at its last fsync."""
        self.full: set[str] = set()
        """Names of hosts whose commit log and epoch file take no more bytes."""

    def fsync(self, descriptor: int) -> None:
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode):
            self.synced[status.st_ino] = Path(f"/proc/self/fd/{descriptor}").read_bytes()

    def check_space(self) -> None:
        host = current_host.get()
        if host is not None and host.name in self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """Replaces the calls."""
        write_all, write_epochs = mapped.write_all, EpochFile._write

        def write_some(fd: int, data: Any, position: int) -> None:
            self.check_space()
            write_all(fd, data, position)

        def write_epochs_some(file: EpochFile, entries: Any) -> None:
            self.check_space()
            write_epochs(file, entries)

        with ExitStack() as stack:
            for target, name, value in (
                (os, "fsync", self.fsync),
                (os, "fdatasync", self.fsync),
                (os, "getpid", lambda: 4242),
                (session, "_instances", itertools.count()),
                (layout, "SLOTS", WHEEL_SLOTS),
                (mapped, "write_all", write_some),
                (EpochFile, "_write", write_epochs_some),
            ):
                stack.enter_context(mock.patch.object(target, name, value))
            yield

    # -- crashes ------------------------------------------------------------------------------------------

    def copy(self, directory: Path, copy: Path) -> None:
        """Copy a directory, and with it the knowledge of what is durable in it."""
        shutil.copytree(directory, copy)
        for path in files_of(directory):
            synced = self.synced.get(path.stat().st_ino)
            if synced is not None:
                self.synced[(copy / path.relative_to(directory)).stat().st_ino] = synced

    def lose_pages(self, directory: Path, rng: random.Random, share: float) -> None:
        """Each page (or sector: torn writes) is as it was synced last, or as it was written last.

        `share` of those that differ are lost.
        """
        size = rng.choice((SECTOR, PAGE))
        for path in files_of(directory):
            key, written = path.stat().st_ino, path.read_bytes()
            if path.relative_to(directory).parts[0] in PAGED:
                durable = self.synced.get(key, b"").ljust(len(written), b"\0")
                disk = bytearray(written)
                for at in range(0, len(written), size):
                    end = at + size
                    if written[at:end] != durable[at:end] and rng.random() < share:
                        disk[at:end] = durable[at:end]
                path.write_bytes(disk)
            self.synced[key] = path.read_bytes()


def lose_tails(disk: TrackedDisk, directory: Path, rng: random.Random, share: float) -> None:
    """Of files that were appended to, cut a random part, or with `share` 1 all, of what was not synced."""
    for name, synced in disk.synced.items():
        path = directory / name
        if path.exists():
            size = path.stat().st_size
            if size > synced:
                with path.open("r+b") as file:
                    file.truncate(synced if share >= 1 else rng.randint(synced, size))


def files_of(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file())
