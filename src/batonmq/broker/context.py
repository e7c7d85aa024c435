"""`Broker`: what all parts of one broker share.

A part takes what it needs from here and passes it to its classes, which depend on nothing else. What belongs
to one feature (delayed messages, say) is not here but in the feature's part.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random

    from batonmq.broker.messages.appender import Appender
    from batonmq.broker.messages.redirects import Redirects
    from batonmq.broker.role import RoleState
    from batonmq.broker.settings import Settings
    from batonmq.broker.stats import BrokerStats
    from batonmq.broker.tables.tables import Tables
    from batonmq.common.clock import Clock
    from batonmq.ha.port import Replication
    from batonmq.net.client import RemotingClient
    from batonmq.store.store import MessageStore


@dataclass(slots=True, kw_only=True, eq=False)
class Broker:
    """One broker on one event loop."""

    settings: Settings
    clock: Clock
    rng: random.Random
    """Source of every random choice (queue of a message without one, retry queue)."""
    store: MessageStore
    role: RoleState
    tables: Tables
    appender: Appender
    """The only way into a master's log."""
    redirects: Redirects
    """Kinds of messages that are stored elsewhere until their time has come."""
    replication: Replication | None
    """None on a broker that replicates to nobody (no controller, no slave allowed)."""
    stats: BrokerStats
    client: RemotingClient
    """For calls to name servers, controllers and the master."""
    fail: Callable[[Exception], None]
    """Have the program stop this broker, for this cause; returns at once."""
    address: str = ""
    """``ip:port`` under which clients reach this broker (brokerIP1:listenPort); known once it listens."""
    ha_address: str = ""
    """``ip:port`` of the replication port (brokerIP2:haListenPort); known once it listens."""
