"""The JSON files below `storePathRootDir/config`: replaced as a whole, with one backup.

The new contents are written to a temporary file, fsynced and renamed; the previous file stays as ``.bak``. At
every moment one of the two is complete. RocketMQ's brokers read and write the same two names.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from batonmq.common.config import ConfigError
from batonmq.common.files import sync_directory, write_beside

log = logging.getLogger(__name__)

T = TypeVar("T")

ENCODE_SHARE: Final = 4
"""Pause between two writes, as a multiple of the encoding time: a large table that changes all the time uses
at most a fifth of the event loop."""


class TableFile:
    """One table on disk and its backup.

    `load` is for start-up and blocks. `save` writes off the event loop. All calls of `save` during a write
    share the next write, which encodes the contents when it begins.
    """

    def __init__(self, path: Path, *, private: bool = False) -> None:
        """`private`: only the owner may read a new file."""
        self.path = path
        self._private = private
        self.backup = path.with_name(path.name + ".bak")
        self._next: tuple[Callable[[], bytes], asyncio.Future[None]] | None = None
        """The next write: its contents, and the future of its callers."""
        self._writer: asyncio.Task[None] | None = None

    def load(self, decode: Callable[[bytes], T]) -> T | None:
        """Contents of the file, or of its backup if it is missing, empty or broken; None if both are missing.

        `decode` raises ValueError for invalid contents. Raises ConfigError if files exist but none is valid:
        a start with an empty table would lose their contents.
        """
        broken: list[str] = []
        for path in (self.path, self.backup):
            try:
                data = path.read_bytes()
            except FileNotFoundError:
                continue
            except OSError as error:
                broken.append(f"{path}: {error.strerror or error}")
                continue
            if not data.strip():
                broken.append(f"{path}: is empty")
                continue
            try:
                table = decode(data)
            except ValueError as error:
                broken.append(f"{path}: {error}")
                continue
            if broken:
                log.warning("%s; using %s", broken[0], path)
            return table
        if broken:
            raise ConfigError(
                f"cannot read {'; '.join(broken)}. Restore the file from another broker of the broker set, "
                "or remove it and its .bak to start with an empty table"
            )
        return None

    def modified_ns(self) -> int:
        """When the contents were written, in ns; -1 if there are none."""
        return max(
            (path.stat().st_mtime_ns for path in (self.path, self.backup) if path.exists()), default=-1
        )

    def write(self, data: bytes) -> None:
        """Replace the contents durably. Blocks on fsync; raises OSError."""
        temporary = write_beside(self.path, data, private=self._private)
        if self.path.exists():
            self.path.replace(self.backup)  # after a crash right here load() reads the backup
        temporary.replace(self.path)
        sync_directory(self.path.parent)

    async def save(self, contents: Callable[[], bytes]) -> None:
        """`write` the result of `contents` in the executor; returns once that or a newer version is durable.
        Raises OSError."""
        done = self._next[1] if self._next is not None else asyncio.get_running_loop().create_future()
        self._next = contents, done
        if self._writer is None or self._writer.done():
            self._writer = asyncio.ensure_future(self._drain())
        # Not the end of `_drain`: later callers may prolong it without limit.
        await asyncio.shield(done)

    async def _drain(self) -> None:
        loop = asyncio.get_running_loop()
        while self._next is not None:
            (contents, done), self._next = self._next, None
            began = loop.time()
            try:
                data = contents()
                pause_s = (loop.time() - began) * ENCODE_SHARE
                await loop.run_in_executor(None, self.write, data)
            except Exception as error:
                done.set_exception(error)
                done.exception()  # marks it as retrieved, even if all waiting callers were cancelled
                continue
            except BaseException:
                done.cancel()
                raise
            done.set_result(None)
            if self._next is not None:
                await asyncio.sleep(pause_s)
