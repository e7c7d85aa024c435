"""The persistent tables of a broker: when each is restored, written, and copied by slaves.

A part declares its tables (`Part.tables`); `Persistence` manages the files below ``config/`` of the store.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from batonmq.broker.tables.files import TableFile
from batonmq.common.tasks import Tasks
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.store.mapped import FILES_AGAIN_S, FILES_PATIENCE_S, NOT_OPENED

if TYPE_CHECKING:
    from batonmq.protocol.registry import Header

log = logging.getLogger(__name__)


UNKNOWN_MARK: Final = "?"
"""`Master.access_control` before the master has said it."""


class Master(Protocol):
    """A slave's view of the master whose tables it copies."""

    announces_changes: bool
    """False for a RocketMQ broker: the slave must poll it every few seconds."""
    address: str
    access_control: str | None
    """Mark of its users and access control lists (`AccessTable.mark`)."""

    async def fetch(self, header: Header) -> bytes:
        """Send a request; returns the body of the answer. Raises `NetError` or `MQError`."""


async def fetch_if_known(master: Master, header: Header) -> bytes | None:
    """The master's answer; None if it is of an older release, which does not know the request: its table is
    not copied, which is not a failure. Raises `NetError` or `MQError`."""
    try:
        return await master.fetch(header)
    except MQError as error:
        if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise
        return None


class Member(Master, Protocol):
    """A replica that was there while this master was away."""

    acted: bool
    """Whether it acted as master meanwhile. Known once its consumer offsets were read."""


@dataclass(slots=True, kw_only=True)
class Table:
    """One table with its file ``config/<name>.json`` and, on a slave, its copy from the master."""

    name: str
    encode: Callable[[], bytes]
    restore: Callable[[bytes], object]
    """Loads a file's contents. Raises ValueError and then changes nothing."""
    interval_ms: Callable[[], int] | None = None
    """Interval of writes of a changed table; None: it is written after each `Persistence.save`."""
    used: Callable[[], bool] = lambda: True
    """Whether a stop writes the table once more. False for an empty one that is written at every change."""
    take_changed: Callable[[], bool] = lambda: False
    """Whether the table changed since the last call; for tables with an interval."""
    private: bool = False
    """Whether only the broker's own user may read the file."""
    file: str = ""
    """Name of the file, if not ``<name>.json``."""
    other_file: str = ""
    """The table's file under another configuration; at the start, the one that was written last is read."""
    copy: Callable[[Master], Awaitable[None]] | None = None
    """On a slave: copy the master's table. Raises `NetError`, `MQError` or ValueError. Tables are copied in
    the order of the parts."""
    take_back: Callable[[Member], Awaitable[bool]] | None = None
    """On a master that returns: take what a member of the broker set knows better. True: this table has
    changed. Raises as `copy`; in the same order."""


class Persistence:
    """Tables on disk."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._tables: dict[str, Table] = {}
        self._files: dict[str, TableFile] = {}
        self._scheduled: set[str] = set()
        """Names of the tables that are written at the end of this loop turn."""
        self._writes: dict[str, asyncio.Task[OSError | None]] = {}
        """The last write that `save` started, by table."""
        self._tasks = Tasks()
        self._abandoned = False

    def __iter__(self) -> Iterator[Table]:
        return iter(self._tables.values())

    def restore(self, tables: Iterable[Table]) -> None:
        """Add these tables and read their files. Blocks; raises `ConfigError` for an invalid file."""
        for table in tables:
            if table.name in self._tables:
                raise ValueError(f"two tables are named {table.name}")
            self._tables[table.name] = table
            path = self._directory / (table.file or f"{table.name}.json")
            file = self._files[table.name] = TableFile(path, private=table.private)
            other = TableFile(self._directory / table.other_file) if table.other_file else file
            (other if other.modified_ns() > file.modified_ns() else file).load(table.restore)

    def start(self) -> None:
        """Start the regular writes of the tables with an interval."""
        for table in self._tables.values():
            if table.interval_ms is not None:
                work = partial(self._write_regularly, table, table.interval_ms)
                self._tasks.keep(work, f"regular writes of the table {table.name}")

    async def stop(self) -> None:
        """Write every table a last time. With too many open files, wait a little for some to close."""
        await self._tasks.cancel()
        loop = asyncio.get_running_loop()
        until = loop.time() + FILES_PATIENCE_S
        for name, table in self._tables.items():
            if not table.used():
                continue
            while (error := await self._try_write(name)) is not None:
                if error.errno not in NOT_OPENED or loop.time() >= until:
                    log.error("%s cannot be written: %s", self._files[name].path, error)
                    break
                await asyncio.sleep(FILES_AGAIN_S)

    def abandon(self) -> None:
        """Write nothing from now on: the disk of the store has failed, or the start has."""
        self._abandoned = True

    def save(self, name: str) -> None:
        """Write a table soon; all changes of one loop turn are written together."""
        if name not in self._scheduled:
            self._scheduled.add(name)
            self._writes[name] = self._tasks.spawn(self._write_soon(name))

    async def written(self) -> None:
        """Wait until all changes passed to `save` are on disk. Raises OSError."""
        for name, write in list(self._writes.items()):
            if write.done() and write.result() is not None:
                self.save(name)  # try again: the disk may work now
        writes = list(self._writes.values())
        if writes:
            # Unlike gather, wait does not cancel the writes if the caller is cancelled.
            await asyncio.wait(writes)
        for write in writes:
            if (error := write.result()) is not None:
                raise error

    async def _write_soon(self, name: str) -> OSError | None:
        await asyncio.sleep(0)
        self._scheduled.discard(name)
        return await self._write(name)

    async def _write(self, name: str) -> OSError | None:
        error = await self._try_write(name)
        if error is not None:
            log.error("%s cannot be written: %s", self._files[name].path, error)
        return error

    async def _try_write(self, name: str) -> OSError | None:
        if self._abandoned:
            return None
        try:
            await self._files[name].save(self._tables[name].encode)
        except OSError as error:
            return error
        return None

    async def _write_regularly(self, table: Table, interval_ms: Callable[[], int]) -> None:
        while True:
            await asyncio.sleep(interval_ms() / 1000)
            if table.take_changed():
                await self._write(table.name)
