"""The part that lets an acting master write to other masters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from batonmq.broker.escape import metrics
from batonmq.broker.escape.bridge import EscapeBridge
from batonmq.broker.escape.reads import RemoteReader
from batonmq.broker.part import Part

if TYPE_CHECKING:
    from batonmq.broker.context import Broker
    from batonmq.common.metrics import Metric, Source


class EscapePart(Part):
    """Comes before the parts that write messages."""

    METRICS: ClassVar[tuple[Metric, ...]] = metrics.METRICS

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.bridge = EscapeBridge(broker)
        broker.appender.escape = self.bridge.take
        broker.read_elsewhere = RemoteReader(broker).read

    def metrics(self) -> Mapping[Metric, Source]:
        return metrics.sources(self._broker, self.bridge)

    def role_ending(self) -> None:
        self.bridge.role_ending()

    async def stop(self) -> None:
        await self.bridge.stop()
