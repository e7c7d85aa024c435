"""`Tables`: what a broker knows besides its messages, and when a change of it is safe."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from batonmq.broker.tables.consumers import ConsumerTable
from batonmq.broker.tables.locks import LockTable
from batonmq.broker.tables.producers import ProducerTable
from batonmq.broker.tables.watch import TableWatch
from batonmq.common.files import reason
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError

if TYPE_CHECKING:
    from batonmq.broker.tables.offsets import OffsetTable
    from batonmq.broker.tables.persistence import Persistence
    from batonmq.broker.tables.subscriptions import SubscriptionTable
    from batonmq.broker.tables.topics import TopicTable
    from batonmq.net import Connection
    from batonmq.protocol.bodies.common import MessageQueue


@dataclass(slots=True, kw_only=True, eq=False)
class Tables:
    """Changed directly by handlers: one event loop, no locks."""

    topics: TopicTable
    subscriptions: SubscriptionTable
    offsets: OffsetTable
    persistence: Persistence
    consumers: ConsumerTable = field(default_factory=ConsumerTable)
    producers: ProducerTable = field(default_factory=ProducerTable)
    locks: LockTable[MessageQueue] = field(default_factory=LockTable)
    """Queues that orderly consumers hold."""
    watch: TableWatch[Connection] = field(default_factory=TableWatch)
    """The slaves that copy these tables."""

    async def durable(self) -> None:
        """Wait until the slaves, as far as they can be waited for, and this broker's disk have all changes
        made so far. Raises `MQError` if the disk does not take them."""
        await self.watch.wait_until_copied()
        try:
            await self.persistence.written()
        except OSError as error:
            raise MQError(ResponseCode.SYSTEM_ERROR, f"in force until a restart: {reason(error)}") from error
