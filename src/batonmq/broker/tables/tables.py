"""`Tables`: the broker's state besides its messages."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from batonmq.broker.tables.broadcast import BroadcastOffsets
from batonmq.broker.tables.consumers import ConsumerTable
from batonmq.broker.tables.locks import LockTable
from batonmq.broker.tables.producers import ProducerTable
from batonmq.broker.tables.watch import TableWatch
from batonmq.common.files import reason
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError

if TYPE_CHECKING:
    from batonmq.broker.tables.filters import FilterTable
    from batonmq.broker.tables.mappings import MappingTable
    from batonmq.broker.tables.offsets import OffsetTable
    from batonmq.broker.tables.persistence import Persistence
    from batonmq.broker.tables.subscriptions import SubscriptionTable
    from batonmq.broker.tables.topics import TopicTable
    from batonmq.net import Connection
    from batonmq.protocol.bodies.common import MessageQueue


def _names_of(queue: MessageQueue) -> int:
    return len(queue.topic) + len(queue.broker_name)


@dataclass(slots=True, kw_only=True, eq=False)
class Tables:
    """Handlers change the tables directly: one event loop, no locks."""

    topics: TopicTable
    subscriptions: SubscriptionTable
    offsets: OffsetTable
    mappings: MappingTable
    """Static topics."""
    filters: FilterTable
    """SQL92 filters of groups."""
    persistence: Persistence
    consumers: ConsumerTable = field(default_factory=ConsumerTable)
    broadcast: BroadcastOffsets = field(default_factory=BroadcastOffsets)
    """How far the clients of broadcasting groups are."""
    producers: ProducerTable = field(default_factory=ProducerTable)
    locks: LockTable[MessageQueue] = field(default_factory=lambda: LockTable(names=_names_of))
    """Queue locks of orderly consumers."""
    watch: TableWatch[Connection] = field(default_factory=TableWatch)
    """Notifies the slaves that copy these tables."""

    async def durable(self) -> None:
        """Wait until slaves and disk have all changes so far; a slow slave is given up after a while. Raises
        `MQError` if the disk fails."""
        await self.watch.wait_until_copied()
        await self.written()

    async def written(self, *names: str) -> None:
        """Wait until these tables, and all changes so far of others, are on disk. Raises `MQError` if the
        disk fails."""
        for name in names:
            self.persistence.save(name)
        try:
            await self.persistence.written()
        except OSError as error:
            raise MQError(ResponseCode.SYSTEM_ERROR, f"in force until a restart: {reason(error)}") from error
