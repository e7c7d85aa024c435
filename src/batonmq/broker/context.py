"""The `Broker` object: what one broker consists of, handed to every handler module.

Each module of ``broker/handlers/`` offers ``register(dispatcher: Dispatcher, broker: Broker) -> None``, which
binds its functions to request codes; `service.py` calls all of them once, before the server listens.
Handlers read and change the tables below directly (one event loop, no locks). What must reach the name
servers or the disk at once goes through the callbacks at the end, which `service.py` fills in.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from batonmq.broker.locks import LockTable
from batonmq.broker.table_watch import TableWatch
from batonmq.protocol.bodies.common import DataVersion

if TYPE_CHECKING:
    import random

    from batonmq.broker.appender import Appender
    from batonmq.broker.config import BrokerConfig
    from batonmq.broker.consumers import ConsumerTable
    from batonmq.broker.new_topics import NewTopics
    from batonmq.broker.offsets import OffsetTable
    from batonmq.broker.producers import ProducerTable
    from batonmq.broker.schedule import DelaySchedule
    from batonmq.broker.stats import BrokerStats
    from batonmq.broker.subscriptions import SubscriptionTable
    from batonmq.broker.topics import TopicTable
    from batonmq.common.clock import Clock
    from batonmq.ha.config import HAConfig
    from batonmq.ha.service import HAService
    from batonmq.net import Connection
    from batonmq.net.client import RemotingClient
    from batonmq.protocol.bodies.common import MessageQueue
    from batonmq.store.config import StoreConfig
    from batonmq.store.store import MessageStore


class BrokerRole(Enum):
    """The role of the store, in RocketMQ's words (`brokerRole`)."""

    ASYNC_MASTER = "ASYNC_MASTER"
    SYNC_MASTER = "SYNC_MASTER"
    SLAVE = "SLAVE"

    @property
    def is_master(self) -> bool:
        return self is not BrokerRole.SLAVE


async def _done() -> None:
    """Default of `tables_written`."""


def _nothing() -> None:
    """Default of the callbacks until the service has set them."""


async def _ignored(changes: Mapping[str, str]) -> None:
    """Default of `save_config` until the service has set it."""


@dataclass(slots=True, kw_only=True, eq=False)
class Broker:
    """One broker's state. Lives on one event loop; nothing here does I/O by itself."""

    config: BrokerConfig
    store_config: StoreConfig
    ha_config: HAConfig
    clock: Clock
    rng: random.Random
    """Source of every random choice (queue of a message without one, retry queue)."""
    store: MessageStore
    topics: TopicTable
    subscriptions: SubscriptionTable
    offsets: OffsetTable
    consumers: ConsumerTable
    producers: ProducerTable
    stats: BrokerStats
    outer: RemotingClient
    """For calls to name servers, controllers and the master."""
    appender: Appender = field(init=False)
    """The only way into a master's log."""
    new_topics: NewTopics = field(init=False)
    """Those that sends made, until slaves and disk know them."""
    schedule: DelaySchedule = field(init=False)
    """Delayed messages."""
    ha: HAService | None = None
    """None on a broker that replicates to nobody (no controller, no slave allowed)."""

    locks: LockTable[MessageQueue] = field(default_factory=LockTable)
    """Queues that orderly consumers hold."""

    tables: TableWatch[Connection] = field(default_factory=TableWatch)
    """Tells slaves of changed topics and groups."""

    role: BrokerRole = BrokerRole.ASYNC_MASTER
    broker_id: int = 0
    """0 is the master's id on the wire (`MASTER_ID`); in controller mode a slave's own id is above 0."""
    epoch: int = 0
    """Master epoch in controller mode, else 0."""
    address: str = ""
    """``ip:port`` under which clients reach this broker (brokerIP1:listenPort)."""
    ha_address: str = ""
    """``ip:port`` of the replication port (brokerIP2:haListenPort)."""
    master_address: str | None = None
    """``ip:port`` of the master while this broker is a slave, when known."""
    master_ha_address: str | None = None
    start_time_ms: int = 0
    config_version: DataVersion = field(default_factory=DataVersion)
    """Moves with each change of the configuration while running."""
    closing: bool = False

    register_now: Callable[[], None] = field(default=_nothing)
    """Register with all name servers soon (a topic changed, the role changed)."""
    save_config: Callable[[Mapping[str, str]], Awaitable[None]] = field(default=_ignored)
    """Write keys that were changed while running (wire spelling) into the configuration file, if there is
    one. Raises OSError, UnicodeDecodeError."""
    tables_written: Callable[[], Awaitable[None]] = field(default=_done)
    """Wait until topics and groups as they are now are on this broker's disk. Raises OSError."""
