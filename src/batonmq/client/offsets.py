"""Stores a consumer's offsets: at the broker for a group, in a file for broadcasting."""

from __future__ import annotations

import asyncio
import fcntl
import os
from pathlib import Path
from typing import Protocol

from batonmq.net.connection import Connection, Response
from batonmq.protocol.bodies.clients import ResetOffsetBody
from batonmq.protocol.bodies.common import MessageQueue
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.pull import (
    QueryConsumerOffset,
    QueryConsumerOffsetResponse,
    UpdateConsumerOffset,
)
from batonmq.protocol.json import BodyError, decode, encode
from batonmq.protocol.registry import Header
from batonmq.routing.session import Session


class OffsetStore(Protocol):
    """Committed offsets: the next message to handle, by queue."""

    def open(self) -> None:
        """Before the first use. Raises `OSError` when offsets cannot be kept."""

    def close(self) -> None:
        """After the last use; further calls do nothing."""

    async def read(self, queue: MessageQueue) -> int | None:
        """The committed offset, None when there never was one."""

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        """Keep an offset. Raises `MQError`, `NetError` or `OSError` when it is not kept."""

    def is_slaves(self, queue: MessageQueue) -> bool:
        """Whether the offset that was read last is a slave's: its master may know a later one."""


class GroupOffsets:
    """Offsets of a group, kept by the brokers. What a broker got over a connection that is still open is not
    sent again: one that restarted may have lost the last seconds, and a slave's offsets are not its master's.

    With ``slaves`` a slave is asked, and gets commits, while no master is registered.
    """

    def __init__(self, session: Session, group: str, *, slaves: bool = False) -> None:
        self._session = session
        self._group = group
        self._slaves = slaves
        self._committed: dict[MessageQueue, tuple[int, Connection | None]] = {}
        self._read_from_slave: set[MessageQueue] = set()

    def open(self) -> None:
        """The brokers keep them."""

    def close(self) -> None:
        """The brokers keep them."""

    async def read(self, queue: MessageQueue) -> int | None:
        header = QueryConsumerOffset(self._group, queue.topic, queue.queue_id)
        try:
            answer, address = await self._call(queue, header)
        except MQError as error:
            if error.code == ResponseCode.QUERY_NOT_FOUND:
                self._note_reader(queue, self._address(queue))
                return None
            raise
        assert isinstance(answer.header, QueryConsumerOffsetResponse)
        offset = answer.header.offset
        self._note_reader(queue, address)
        self._committed[queue] = offset, self._session.net.connected(address)
        return offset

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        known, address = self._committed.get(queue), self._address(queue)
        if known is not None and address is not None:
            connection = self._session.net.connected(address)
            if connection is not None and known == (offset, connection):
                return
        header = UpdateConsumerOffset(self._group, queue.topic, queue.queue_id, offset)
        _, address = await self._call(queue, header)
        self._committed[queue] = offset, self._session.net.connected(address)

    def is_slaves(self, queue: MessageQueue) -> bool:
        return queue in self._read_from_slave

    async def _call(self, queue: MessageQueue, header: Header) -> tuple[Response, str]:
        if self._slaves:
            return await self._session.call_any(queue, header)
        answer = await self._session.call_for(queue, header)
        return answer, self._address(queue) or ""

    def _address(self, queue: MessageQueue) -> str | None:
        route = self._session.known_route(queue.topic)
        if route is None:
            return None
        broker = route.broker_of(queue)
        return route.replica(broker) if self._slaves else route.master(broker)

    def _note_reader(self, queue: MessageQueue, address: str | None) -> None:
        route = self._session.known_route(queue.topic)
        if route is not None and route.master(route.broker_of(queue)) != address:
            self._read_from_slave.add(queue)
        else:
            self._read_from_slave.discard(queue)


class LocalOffsets:
    """Offsets of this client alone, in ``<folder>/<group>.json``; ``<group>.lock`` keeps others away.

    Two clients in one file would each commit over the other's offsets, and skip messages after a restart.
    """

    def __init__(self, folder: str, group: str) -> None:
        self._path = Path(folder).expanduser() / f"{group}.json"
        self._lock: int | None = None
        self._table: dict[MessageQueue, int] | None = None
        self._changed = False
        self._writing = asyncio.Lock()

    def open(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self._path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OSError(
                f"{self._path} is in use by another broadcasting consumer; give each its own offsets_dir"
            ) from None
        self._load()

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _load(self) -> dict[MessageQueue, int]:
        if self._table is None:
            try:
                self._table = decode(self._path.read_bytes(), ResetOffsetBody).offset_table
            except FileNotFoundError:
                self._table = {}
            except BodyError as error:
                raise OSError(f"{self._path}: {error}; remove the file to start over") from None
        return self._table

    async def read(self, queue: MessageQueue) -> int | None:
        return self._load().get(queue)

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        table = self._load()
        if table.get(queue) != offset:
            table[queue] = offset
            self._changed = True
        async with self._writing:  # one write has what all that waited for it changed
            if self._changed:
                self._changed = False
                data = encode(ResetOffsetBody(table))
                try:
                    await asyncio.get_running_loop().run_in_executor(None, self._write, data)
                except BaseException:
                    self._changed = True
                    raise

    def is_slaves(self, queue: MessageQueue) -> bool:
        return False

    def _write(self, data: bytes) -> None:
        temporary = self._path.with_suffix(".tmp")
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self._path)
