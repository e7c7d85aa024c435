"""The tables of a broker that outlive it: when each is restored, written and copied by slaves.

A part declares its tables (`Part.tables`); `Persistence` keeps the files below ``config/`` of the store.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from batonmq.broker.tables.files import TableFile
from batonmq.common.tasks import Tasks

if TYPE_CHECKING:
    from batonmq.protocol.registry import Header

log = logging.getLogger(__name__)


class Master(Protocol):
    """The master, as a slave that copies its tables sees it."""

    announces_changes: bool
    """False: a RocketMQ broker, which has to be asked every few seconds."""
    address: str

    async def fetch(self, header: Header) -> bytes:
        """Body of its answer. Raises `NetError` or `MQError`."""


@dataclass(slots=True, kw_only=True)
class Table:
    """One table with its file ``config/<name>.json`` and, on a slave, its copy from the master."""

    name: str
    encode: Callable[[], bytes]
    restore: Callable[[bytes], object]
    """Takes over a file's contents. Raises ValueError, changing nothing."""
    interval_ms: Callable[[], int] | None = None
    """How often a changed table is written; None: it is written at once after each `Persistence.save`."""
    take_changed: Callable[[], bool] = lambda: False
    """Whether it changed since the last call; for tables that are written every so often."""
    copy: Callable[[Master], Awaitable[None]] | None = None
    """On a slave: take over the master's table. Raises `NetError`, `MQError` or ValueError. Tables are copied
    in the order of the parts."""


class Persistence:
    """Tables on disk."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._tables: dict[str, Table] = {}
        self._files: dict[str, TableFile] = {}
        self._scheduled: set[str] = set()
        """Tables whose write begins at the end of this loop turn."""
        self._writes: dict[str, asyncio.Task[OSError | None]] = {}
        """The last write of each table that `save` asked for."""
        self._tasks = Tasks()

    def __iter__(self) -> Iterator[Table]:
        return iter(self._tables.values())

    def restore(self, tables: Iterable[Table]) -> None:
        """Keep these tables from now on; read their files. Blocks; raises `ConfigError` for a file that
        cannot be used."""
        for table in tables:
            if table.name in self._tables:
                raise ValueError(f"two tables are named {table.name}")
            self._tables[table.name] = table
            file = self._files[table.name] = TableFile(self._directory / f"{table.name}.json")
            file.load(table.restore)

    def start(self) -> None:
        """Write the tables that have an interval from now on."""
        for table in self._tables.values():
            if table.interval_ms is not None:
                self._tasks.spawn(self._write_regularly(table, table.interval_ms))

    async def stop(self) -> None:
        """Write every table as it is now."""
        await self._tasks.cancel()
        for name in self._tables:
            await self._write(name)

    def abandon(self) -> None:
        """The store is lost: its disk takes no file either."""
        self._tables.clear()

    def save(self, name: str) -> None:
        """Write a table soon; changes of one loop turn are written together."""
        if name not in self._scheduled:
            self._scheduled.add(name)
            self._writes[name] = self._tasks.spawn(self._write_soon(name))

    async def written(self) -> None:
        """Wait until every table that `save` named is on disk as it is now. Raises OSError."""
        for name, write in list(self._writes.items()):
            if write.done() and write.result() is not None:
                self.save(name)  # the disk may take it by now
        writes = list(self._writes.values())
        if writes:
            await asyncio.wait(
                writes
            )  # which, unlike gather, does not cancel them when the caller is cancelled
        for write in writes:
            if (error := write.result()) is not None:
                raise error

    async def _write_soon(self, name: str) -> OSError | None:
        await asyncio.sleep(0)
        self._scheduled.discard(name)
        return await self._write(name)

    async def _write(self, name: str) -> OSError | None:
        file = self._files[name]
        try:
            await file.save(self._tables[name].encode)
        except OSError as error:
            log.error("%s cannot be written: %s", file.path, error)
            return error
        return None

    async def _write_regularly(self, table: Table, interval_ms: Callable[[], int]) -> None:
        while True:
            await asyncio.sleep(interval_ms() / 1000)
            if table.take_changed():
                await self._write(table.name)
