"""Metrics of the store. Source: RocketMQ's `DefaultStoreMetricsConstant`."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from batonmq.common.metrics import Kind, Metric, Point, Source

if TYPE_CHECKING:
    from batonmq.broker.context import Broker

STORAGE: Final = ("storage_type", "storage_medium")
_STORAGE_VALUES: Final = ("local", "disk")

STORAGE_SIZE: Final = Metric(
    "rocketmq_storage_size", Kind.GAUGE, "Used space of the store's file system", STORAGE, unit="bytes"
)
FLUSH_BEHIND: Final = Metric(
    "rocketmq_storage_flush_behind_bytes",
    Kind.GAUGE,
    "Stored and not yet on this disk",
    STORAGE,
    unit="bytes",
)
DISPATCH_BEHIND: Final = Metric(
    "rocketmq_storage_dispatch_behind_bytes",
    Kind.GAUGE,
    "Stored and not yet shown to consumers",
    STORAGE,
    unit="bytes",
)
RESERVE_TIME: Final = Metric(
    "rocketmq_storage_message_reserve_time",
    Kind.GAUGE,
    "Age of the oldest message stored",
    STORAGE,
    unit="milliseconds",
)
METRICS: Final = (STORAGE_SIZE, FLUSH_BEHIND, DISPATCH_BEHIND, RESERVE_TIME)


def sources(broker: Broker) -> Mapping[Metric, Source]:
    store = broker.store

    async def used() -> Iterable[Point]:
        root = broker.settings.store.root
        usage = await asyncio.get_running_loop().run_in_executor(None, shutil.disk_usage, root)
        return [(_STORAGE_VALUES, usage.used)]

    def age() -> Iterable[Point]:
        earliest_ms = store.earliest_message_time()
        if earliest_ms > 0:
            yield _STORAGE_VALUES, broker.clock.now_ms() - earliest_ms

    return {
        STORAGE_SIZE: used,
        FLUSH_BEHIND: lambda: [(_STORAGE_VALUES, max(0, store.max_offset - store.flushed_offset))],
        DISPATCH_BEHIND: lambda: [(_STORAGE_VALUES, max(0, store.max_offset - store.dispatched_offset))],
        RESERVE_TIME: age,
    }
