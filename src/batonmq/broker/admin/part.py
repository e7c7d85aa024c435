"""The part for administration: runtime figures, configuration, connected clients, clean-up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from batonmq.broker.admin import cleanup, clients, config, runtime_info
from batonmq.broker.part import Part

if TYPE_CHECKING:
    from batonmq.broker.context import Broker
    from batonmq.net import Dispatcher


class AdminPart(Part):
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def handlers(self, dispatcher: Dispatcher) -> None:
        for module in (runtime_info, config, clients, cleanup):
            module.register(dispatcher, self._broker)
