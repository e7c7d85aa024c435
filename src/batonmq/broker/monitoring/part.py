"""The part for statistics: it samples the counters and serves requests for them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, ClassVar

from batonmq.broker.monitoring import metrics, statistics
from batonmq.broker.part import Part
from batonmq.broker.stats import SAMPLE_INTERVAL_MS
from batonmq.common.tasks import Tasks

if TYPE_CHECKING:
    from batonmq.broker.context import Broker
    from batonmq.common.metrics import Metric
    from batonmq.net import Dispatcher


class MonitoringPart(Part):
    METRICS: ClassVar[tuple[Metric, ...]] = metrics.METRICS

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._tasks = Tasks()

    def handlers(self, dispatcher: Dispatcher) -> None:
        statistics.register(dispatcher, self._broker)

    async def start(self) -> None:
        self._tasks.keep(self._sample, "samples of the counters")

    async def stop(self) -> None:
        await self._tasks.cancel()

    async def _sample(self) -> None:
        while True:
            await asyncio.sleep(SAMPLE_INTERVAL_MS / 1000)
            self._broker.stats.sample(self._broker.clock.now_ms())
