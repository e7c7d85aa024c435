"""The part that tools administer the broker through."""

from __future__ import annotations

from typing import TYPE_CHECKING

from batonmq.broker.admin import handlers
from batonmq.broker.part import Part

if TYPE_CHECKING:
    from batonmq.broker.context import Broker
    from batonmq.net import Dispatcher


class AdminPart(Part):
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def handlers(self, dispatcher: Dispatcher) -> None:
        handlers.register(dispatcher, self._broker)
