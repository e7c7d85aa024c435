"""`Container`: adds brokers from their files and removes them, in any of its processes.

Remarks and codes are those of RocketMQ's `BrokerContainerProcessor`. Requests for different brokers run
concurrently: a broker that recovers a large store delays no other.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from batonmq.common.threads import START_PATIENCE_S
from batonmq.container.broker_file import BrokerFile, Unreadable, inside, read_broker_file
from batonmq.container.core import BrokerIdentity, BrokerState, BrokerTable, Entry
from batonmq.container.place import Place, StartFailed, StopFailed
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError

log = logging.getLogger(__name__)

MAX_PATH: Final = 4096
"""Most characters of a path: Linux's limit."""


class Container:
    """The brokers of one container. `open` first, `close` at the end."""

    def __init__(self, table: BrokerTable, namesrv_addr: str) -> None:
        """`namesrv_addr`: name servers of all brokers; if empty, each uses those in its file."""
        self.table = table
        self._namesrv_addr = namesrv_addr
        self._places: Sequence[Place] = ()
        self._starts: dict[BrokerIdentity, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False

    async def open(self, places: Sequence[Place]) -> None:
        """`places`: one for each process of the table. Raises `OSError`."""
        self._places = places
        await asyncio.gather(*(place.open() for place in places))

    async def add(
        self,
        path: str,
        *,
        directories: Sequence[str] = (),
    ) -> BrokerFile:
        """Start the broker of this file; it serves on return. The file must be in one of `directories`; if
        empty, anywhere.

        Raises `ConfigError` (see `read_broker_file`), or `MQError`: SYSTEM_ERROR, or NO_PERMISSION for a file
        in another directory.
        """
        file = await self.read(path, directories=directories)
        await self.start(file)
        return file

    async def read(self, path: str, *, directories: Sequence[str] = ()) -> BrokerFile:
        """The file for `start`. Parameters and errors: see `add`."""
        return await asyncio.get_running_loop().run_in_executor(
            None, partial(_read, path, directories, self._namesrv_addr)
        )

    async def start(self, file: BrokerFile) -> None:
        """Start this broker; it serves on return. It claims its ports and directories before the first await.
        Raises `MQError`."""
        # The start continues if the caller goes away.
        await asyncio.shield(self._begin(file))

    async def remove(self, identity: BrokerIdentity) -> None:
        """Stop a broker, even one that is still starting. Its acknowledged messages are on disk on return.
        Raises `MQError`: BROKER_NOT_EXIST, or SYSTEM_ERROR if it did not stop in order; it is removed in both
        cases.
        """
        entry = self.table.get(identity)
        # If a start fails, another one of the same broker may follow at once.
        while entry is not None and (starting := self._starts.get(identity)) is not None:
            await asyncio.wait([starting])
            entry = self.table.get(identity)
        if entry is None:
            raise MQError(ResponseCode.BROKER_NOT_EXIST, "Broker not exist")
        entry.state = BrokerState.STOPPING
        await asyncio.shield(self._run(self._stop(entry)))

    async def set_name_servers(self, addresses: str) -> None:
        """Present and future brokers register at ``host:port;host:port``."""
        self._namesrv_addr = addresses
        await asyncio.gather(*(place.set_name_servers(addresses) for place in self._places))

    def ended(self, identity: BrokerIdentity, cause: str) -> None:
        """A broker has stopped itself (`place.Ended`)."""
        entry = self.table.get(identity)
        if entry is not None:
            self.table.leave(entry)
            log.error(
                "%s is gone: %s; the other brokers continue (%d), addBroker starts it again",
                identity.canonical_name,
                cause,
                len(self.table),
            )

    async def close(self) -> None:
        """Stop all brokers."""
        self._closing = True
        log.info("stopping %d brokers", len(self.table))
        if starts := list(self._starts.values()):
            _, recovering = await asyncio.wait(starts, timeout=START_PATIENCE_S)
            for start in recovering:
                start.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks))
        await asyncio.gather(*(place.close() for place in self._places))

    def _run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # the caller may be gone

    def _begin(self, file: BrokerFile) -> asyncio.Task[None]:
        """Start a broker. Raises `MQError` if it may not join."""
        if self._closing:
            raise _failed("the container stops")
        entry = self.table.join(file.claims)
        task = self._starts[file.identity] = self._run(self._start(entry, file))
        task.add_done_callback(partial(self._started, file.identity))
        return task

    def _started(self, identity: BrokerIdentity, task: asyncio.Task[None]) -> None:
        if self._starts.get(identity) is task:  # not a later start of the same broker
            del self._starts[identity]

    async def _start(self, entry: Entry, file: BrokerFile) -> None:
        name = file.identity.canonical_name
        try:
            await self._places[entry.place].start(file)
        except StartFailed as error:
            self.table.leave(entry)
            raise _failed(f"start broker failed: {error}") from error
        except BaseException:
            self.table.leave(entry)
            raise
        if self._namesrv_addr and file.config.namesrv_addr != self._namesrv_addr:  # changed in the meantime
            await self._places[entry.place].set_name_servers(self._namesrv_addr)
        entry.state = BrokerState.RUNNING
        log.info("broker added name=%s file=%s brokers=%d", name, file.path, len(self.table))

    async def _stop(self, entry: Entry) -> None:
        identity = entry.claims.identity
        try:
            await self._places[entry.place].stop(identity)
        except StopFailed as error:
            raise _failed(f"{identity.canonical_name} did not stop in order: {error}") from error
        finally:
            self.table.leave(entry)
            log.info("broker removed name=%s brokers=%d", identity.canonical_name, len(self.table))


def _read(path: str, directories: Sequence[str], namesrv_addr: str) -> BrokerFile:
    """Blocks."""
    if len(path) > MAX_PATH:
        raise Unreadable("the path is too long")
    where = Path(path)
    try:
        allowed = not directories or inside(where, directories)
    except (OSError, ValueError) as error:  # a loop of symbolic links, an invalid name
        raise Unreadable(f"{path!r}: cannot be read: {error}") from None
    if not allowed:
        raise MQError(ResponseCode.NO_PERMISSION, f"{path} is outside of addBrokerDirectories")
    return read_broker_file(where, namesrv_addr)


def _failed(remark: str) -> MQError:
    return MQError(ResponseCode.SYSTEM_ERROR, remark)
