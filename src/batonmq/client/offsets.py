"""Where a consumer keeps its offsets: at the broker for a group, in a file for broadcasting."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Protocol

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
from batonmq.routing.session import Session


class OffsetStore(Protocol):
    """Committed offsets: the next message to handle, by queue."""

    async def read(self, queue: MessageQueue) -> int | None:
        """The committed offset, None when there never was one."""

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        """Keep an offset. Raises `MQError`, `NetError` or `OSError` when it is not kept."""


class GroupOffsets:
    """Offsets of a group, kept by the brokers; what did not change is not sent."""

    def __init__(self, session: Session, group: str) -> None:
        self._session = session
        self._group = group
        self._committed: dict[MessageQueue, int] = {}

    async def read(self, queue: MessageQueue) -> int | None:
        try:
            answer = await self._session.call_for(
                queue, QueryConsumerOffset(self._group, queue.topic, queue.queue_id)
            )
        except MQError as error:
            if error.code == ResponseCode.QUERY_NOT_FOUND:
                return None
            raise
        assert isinstance(answer.header, QueryConsumerOffsetResponse)
        self._committed[queue] = answer.header.offset
        return answer.header.offset

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        if self._committed.get(queue) == offset:
            return
        await self._session.call_for(
            queue, UpdateConsumerOffset(self._group, queue.topic, queue.queue_id, offset)
        )
        self._committed[queue] = offset


class LocalOffsets:
    """Offsets of this client alone, in ``<folder>/<group>.json``."""

    def __init__(self, folder: str, group: str) -> None:
        self._path = Path(folder).expanduser() / f"{group}.json"
        self._table: dict[MessageQueue, int] | None = None

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
        if table.get(queue) == offset:
            return
        table[queue] = offset
        await asyncio.get_running_loop().run_in_executor(None, self._write, encode(ResetOffsetBody(table)))

    def _write(self, data: bytes) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._path.with_suffix(".tmp")
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self._path)
