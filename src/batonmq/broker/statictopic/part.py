"""The part for static topics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from batonmq.broker.part import Part
from batonmq.broker.statictopic.expiry import ExpiredParts
from batonmq.broker.statictopic.moved import MovedQueues
from batonmq.broker.statictopic.other_brokers import OtherBrokers
from batonmq.broker.statictopic.queues import LogicalQueues
from batonmq.common.tasks import Tasks

if TYPE_CHECKING:
    from batonmq.broker.context import Broker
    from batonmq.net import Dispatcher


class StaticTopicPart(Part):
    """Comes after the parts that serve physical queues: it stands in front of their handlers."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        others = OtherBrokers(broker)
        self._queues = LogicalQueues(broker, others)
        self._moved = MovedQueues(broker, others)
        self.expired = ExpiredParts(broker, others)
        self._tasks = Tasks()
        self._started = False
        broker.tables.mappings.listeners.append(self._mappings_changed)

    def handlers(self, dispatcher: Dispatcher) -> None:
        self._queues.register(dispatcher)

    async def start(self) -> None:
        self._mappings_changed()  # those of the file

    def _mappings_changed(self) -> None:
        self._moved.mappings_changed()
        if self._broker.tables.mappings and not self._started:  # few brokers have static topics
            self._started = True
            self._tasks.keep(self.expired.forget_regularly, "removal of expired parts of static topics")

    async def stop(self) -> None:
        await self._tasks.cancel()
        await self._moved.stop()
