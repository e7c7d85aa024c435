"""The part for background work on the store: index, flush of consume queues, expired files."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from batonmq.broker.part import Part
from batonmq.broker.upkeep.metrics import METRICS, sources
from batonmq.broker.upkeep.pace import Pace
from batonmq.common.tasks import Tasks

if TYPE_CHECKING:
    from batonmq.broker.config import BrokerConfig
    from batonmq.broker.context import Broker
    from batonmq.common.metrics import Metric, Source
    from batonmq.store.results import QueueKey

log = logging.getLogger(__name__)


class UpkeepPart(Part):
    METRICS: ClassVar[tuple[Metric, ...]] = METRICS

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._store = broker.store
        self._tasks = Tasks()
        self._grown = asyncio.Event()
        """Set when there are messages to index."""
        self._indexing = False
        self._index_failed = False
        """Whether the log is unreadable for the index: logged once, not at every attempt."""
        self._queues_dirty = False
        self._flush_failed = False
        """Likewise for consume queues that cannot be flushed."""
        broker.settings.listeners.append(self._configured)

    def _configured(self, before: BrokerConfig) -> None:
        self._store.config = self._broker.settings.store

    def metrics(self) -> Mapping[Metric, Source]:
        return sources(self._broker)

    async def start(self) -> None:
        self._tasks.keep(self._flush_queues, "flush of the consume queues")
        self._tasks.keep(self._delete_expired, "deletion of expired files")
        self._tasks.keep(self._build_index, "index")

    async def stop(self) -> None:
        await self._tasks.cancel()

    def records_visible(self, grown: Sequence[tuple[QueueKey, int]]) -> None:
        self._queues_dirty = True
        self._grown.set()

    @property
    def indexing(self) -> bool:
        """Whether messages are not in the index yet."""
        return self._grown.is_set() or self._indexing

    async def _build_index(self) -> None:
        loop, store = asyncio.get_running_loop(), self._store
        time_us = self._broker.clock.monotonic_us  # uvloop's own time is in whole milliseconds
        while True:
            await self._grown.wait()
            pace, self._indexing = Pace(), True
            while self._indexing:
                paused_us, worked_s = time_us(), time.thread_time()
                await asyncio.sleep(pace.pause_s)
                pace.paused((time_us() - paused_us) / 1e6, time.thread_time() - worked_s)
                self._grown.clear()
                try:
                    while (reading := store.index_reading()) is not None:
                        await loop.run_in_executor(None, reading)
                except OSError as error:
                    if not self._index_failed:
                        log.error("the index waits: the log cannot be read: %s", error)
                    self._index_failed = True
                    pace.failed()
                    continue
                self._index_failed = False
                began_us = time_us()
                try:
                    self._indexing = store.build_index(pace.size)
                except Exception:
                    self._grown.set()  # `lasting` comes back here
                    raise
                pace.indexed((time_us() - began_us) / 1e6)

    async def _flush_queues(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._broker.settings.store.flush_interval_consume_queue / 1000)
            if self._queues_dirty:
                self._queues_dirty = False
                try:
                    await loop.run_in_executor(None, self._store.flush_queues)
                except Exception as error:
                    self._queues_dirty = True
                    if not isinstance(error, OSError):
                        raise
                    if not self._flush_failed:
                        log.error(
                            "consume queues cannot be flushed; the next start builds them from the log: %s",
                            error,
                        )
                    self._flush_failed = True
                else:
                    self._flush_failed = False

    async def _delete_expired(self) -> None:
        while True:
            await asyncio.sleep(self._broker.settings.store.clean_resource_interval / 1000)
            try:
                await unlink(self._store.delete_expired())
            except OSError as error:
                log.error("expired files cannot be deleted: %s", error)


async def unlink(paths: Sequence[Path]) -> None:
    """Delete files that the store has released. Raises OSError."""
    if paths:
        await asyncio.get_running_loop().run_in_executor(None, _unlink, paths)


def _unlink(paths: Sequence[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)
