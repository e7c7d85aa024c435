"""The part for static topics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from batonmq.broker.part import Part
from batonmq.broker.statictopic.elsewhere import Elsewhere
from batonmq.broker.statictopic.queues import LogicalQueues

if TYPE_CHECKING:
    from batonmq.broker.context import Broker
    from batonmq.net import Dispatcher


class StaticTopicPart(Part):
    """Comes after the parts that serve physical queues: it stands in front of their handlers."""

    def __init__(self, broker: Broker) -> None:
        self._queues = LogicalQueues(broker, Elsewhere(broker))

    def handlers(self, dispatcher: Dispatcher) -> None:
        self._queues.register(dispatcher)
