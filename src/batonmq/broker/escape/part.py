"""The part that lets an acting master write to other masters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from batonmq.broker.escape.bridge import EscapeBridge
from batonmq.broker.part import Part

if TYPE_CHECKING:
    from batonmq.broker.context import Broker


class EscapePart(Part):
    """Before the parts that write messages."""

    def __init__(self, broker: Broker) -> None:
        self.bridge = EscapeBridge(broker)
        broker.appender.escape = self.bridge.take

    def role_ending(self) -> None:
        self.bridge.role_ending()

    async def stop(self) -> None:
        await self.bridge.stop()
