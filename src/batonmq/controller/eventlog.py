"""events.jsonl: the decisions of the leading controller, one JSON object a line.

Elections (who, when, why, from which set), changes of a SyncStateSet, replicas that came and went. Only the
leader writes, when the decision is applied, so no decision is counted twice in a term. The file is
rotated by size; lines are written in the executor, and the last few may be lost in a crash. What
a crash or a full disk left of a line is cut off before the next one: readers take each line for JSON.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

import msgspec

from batonmq.controller.effects import Effect

log = logging.getLogger(__name__)

MAX_WAITING_BYTES = 8 << 20
"""More than this waiting for a slow disk is dropped, with a warning: the log must not take all memory."""

_LOOK_BYTES = 1 << 16


class EventSink(Protocol):
    """Takes what was decided; `EventLog` writes it to a file."""

    def write(self, time_ms: int, node_id: str, effects: Iterable[Effect]) -> None: ...
    async def close(self) -> None: ...


class EventLog:
    """Appends to `path`; keeps `backups` older files as `path.1`, `path.2`, …"""

    def __init__(self, path: Path, *, max_bytes: int, backups: int) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._backups = backups
        self._encoder = msgspec.json.Encoder()
        self._waiting = bytearray()
        self._dropped = 0
        self._failing = False
        self._whole = False
        """Whether the file is known to end with a whole line."""
        self._writer: asyncio.Task[None] | None = None

    def write(self, time_ms: int, node_id: str, effects: Iterable[Effect]) -> None:
        """Queues one line for each effect; `time_ms` is the leader's time of the decision."""
        head = b'{"time_ms":%d,"node":%s,' % (time_ms, self._encoder.encode(node_id))
        for effect in effects:
            if len(self._waiting) > MAX_WAITING_BYTES:
                self._dropped += 1
                continue
            self._waiting += head
            self._waiting += self._encoder.encode(effect)[1:]
            self._waiting += b"\n"
        if self._waiting and self._writer is None:
            self._writer = asyncio.get_running_loop().create_task(self._write_behind())

    async def close(self) -> None:
        """Writes what is queued."""
        if self._writer is not None:
            await self._writer

    async def _write_behind(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._waiting:
                data, self._waiting = bytes(self._waiting), bytearray()
                dropped, self._dropped = self._dropped, 0
                if dropped:
                    log.warning("%s: %d events dropped, the disk is too slow", self.path, dropped)
                await loop.run_in_executor(None, self._append, data)
                if self._failing:
                    self._failing = False
                    log.warning("%s: events are recorded again", self.path)
        except OSError as error:
            # What was decided stands in the Raft log; this file is for people. The controller continues.
            if not self._failing:  # as long as the disk is full, each decision comes here
                self._failing = True
                log.error("%s: events are not recorded: %s", self.path, error.strerror or error)
        finally:
            self._writer = None

    def _append(self, data: bytes) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if not self._whole and self.path.exists():
            _cut_unfinished_line(self.path)
        self._whole = False
        if self.path.exists() and self.path.stat().st_size + len(data) > self._max_bytes:
            self._rotate()
        with self.path.open("ab") as file:
            file.write(data)
        self._whole = True

    def _rotate(self) -> None:
        names = [self.path, *(self.path.with_name(f"{self.path.name}.{n + 1}") for n in range(self._backups))]
        names[-1].unlink(missing_ok=True)
        for older, newer in zip(reversed(names[1:]), reversed(names[:-1]), strict=True):
            if newer.exists():
                newer.rename(older)


def _cut_unfinished_line(path: Path) -> None:
    """Cut what follows the last line end."""
    with path.open("r+b") as file:
        size = whole = file.seek(0, os.SEEK_END)
        while whole > 0:
            first = max(0, whole - _LOOK_BYTES)
            file.seek(first)
            end = file.read(whole - first).rfind(b"\n")
            if end >= 0:
                whole = first + end + 1
                break
            whole = first
        if whole < size:
            log.warning("%s: %d bytes of an unfinished line are cut off", path, size - whole)
            file.truncate(whole)
