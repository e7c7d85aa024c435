"""The JSON files below `storePathRootDir/config`: written whole, never torn, with one generation kept.

A file is written beside its name, fsynced and renamed to it; the generation before it stays as ``.bak``.
At every moment one of the two is whole. RocketMQ's brokers read and write the same two names.
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
"""Between two writes rests this many times what encoding took: a large table that changes all the time keeps
the event loop busy for a fifth of it at most."""


class TableFile:
    """One table on disk and its backup.

    `load` is for start-up and blocks. `save` writes off the event loop; what is asked for while one write is
    under way becomes one more write, whose contents are taken when it begins.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.backup = path.with_name(path.name + ".bak")
        self._next: tuple[Callable[[], bytes], asyncio.Future[None]] | None = None
        """What comes after the write under way, and who waits for it."""
        self._writer: asyncio.Task[None] | None = None

    def load(self, decode: Callable[[bytes], T]) -> T | None:
        """Contents of the file, else of its backup if it is missing, empty or broken; None without both.

        `decode` raises ValueError for bytes it cannot use. Raises ConfigError when there is something on disk
        and none of it can be used: starting with an empty table would lose what the files held.
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
                f"cannot read {'; '.join(broken)}. Restore the file from another broker of the group, "
                "or remove it and its .bak to start with an empty table"
            )
        return None

    def write(self, data: bytes) -> None:
        """Replace the contents, durably. Blocks on fsync; raises OSError."""
        fresh = write_beside(self.path, data)
        if self.path.exists():
            self.path.replace(self.backup)  # a crash right here is covered: load() goes on to the backup
        fresh.replace(self.path)
        sync_directory(self.path.parent)

    async def save(self, contents: Callable[[], bytes]) -> None:
        """`write` what `contents` returns by then, in the executor; returns when that or something newer is
        durable. Raises OSError."""
        done = self._next[1] if self._next is not None else asyncio.get_running_loop().create_future()
        self._next = contents, done
        if self._writer is None or self._writer.done():
            self._writer = asyncio.ensure_future(self._drain())
        # This write, and not the end of `_drain`: others may always want one more.
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
                done.exception()  # seen, even if all that waited for it were cancelled
                continue
            except BaseException:
                done.cancel()
                raise
            done.set_result(None)
            if self._next is not None:
                await asyncio.sleep(pause_s)
