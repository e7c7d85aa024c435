"""Group commit of a slave: its log goes to disk behind what the link to the master appends."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from batonmq.ha.port import ReplicatedLog

log = logging.getLogger(__name__)


class FlushObserver(Protocol):
    """Acknowledges what is on disk."""

    def flushed(self) -> None: ...
    def flush_failed(self, error: Exception) -> None: ...


class SlaveFlusher:
    """One flush at a time, for as long as a replica is slave: while `observer` is set."""

    def __init__(self, store: ReplicatedLog, *, sync_flush: bool, interval_ms: int) -> None:
        """`sync_flush`: flush at once, again and again until all is on disk; else every `interval_ms`."""
        self.observer: FlushObserver | None = None
        self._store = store
        self._sync_flush = sync_flush
        self._interval_s = interval_ms / 1000
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def soon(self) -> None:
        """Bytes were appended."""
        if self._task is not None:
            return
        if self._sync_flush:
            self._start()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._interval_s, self._due)

    async def settled(self) -> None:
        """Wait for a flush under way: a log must not be cut under one."""
        while self._task is not None:
            await asyncio.wait([self._task])

    async def stop(self) -> None:
        """Begin no other flush, and wait for the one under way."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._task is not None:
            await self._task

    def _due(self) -> None:
        self._timer = None
        if self._task is None and self.observer is not None:
            self._start()

    def _start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._flush())

    async def _flush(self) -> None:
        store = self._store
        try:
            while store.flushed_offset < store.max_offset:
                await asyncio.get_running_loop().run_in_executor(None, store.flush)
                if self.observer is not None:
                    self.observer.flushed()
                if not self._sync_flush or self.observer is None:
                    break
        except Exception as error:  # not only of the disk: there may be no thread for it
            known = isinstance(error, OSError | RuntimeError)
            log.error("flushing the log failed: %s", error, exc_info=not known)
            if self.observer is not None:
                self.observer.flush_failed(error)
        else:
            if self.observer is not None and store.flushed_offset < store.max_offset:
                asyncio.get_running_loop().call_soon(self.soon)
        finally:
            self._task = None
