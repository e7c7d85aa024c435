"""`Broker`: what all parts of one broker share.

A part takes what it needs from here and passes it to its classes, which depend on nothing else. The state of
one feature (delayed messages, for example) belongs to that feature's part.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from batonmq.broker.members import MemberGroup
from batonmq.net.errors import ConnectFailed

if TYPE_CHECKING:
    import random
    from concurrent.futures import Executor

    from batonmq.broker.messages.appender import Appender
    from batonmq.broker.messages.redirects import Redirects
    from batonmq.broker.role import RoleState
    from batonmq.broker.settings import Settings
    from batonmq.broker.stats import BrokerStats
    from batonmq.broker.tables.tables import Tables
    from batonmq.common.clock import Clock
    from batonmq.ha.port import Replication
    from batonmq.net.client import RemotingClient
    from batonmq.protocol.message.record import MessageExt
    from batonmq.store.store import MessageStore

ReadElsewhere: TypeAlias = "Callable[[str, str, int, int], Awaitable[MessageExt | None]]"
"""See `RemoteReader.read` (`escape/reads.py`)."""


def _anyone(user: str | None, topic: str, peer: str) -> bool:
    """Default of `Broker.may_send`."""
    return True


def _no_role() -> None:
    """Default of `Broker.assume_role`."""


async def _read_nothing(broker_name: str, topic: str, queue_id: int, offset: int) -> MessageExt | None:
    """Default of `Broker.read_elsewhere`."""
    raise ConnectFailed(broker_name, "this broker reads no other broker set")


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
    """The only writer of a master's log."""
    redirects: Redirects
    """Rules for messages that wait in another topic until they are due."""
    replication: Replication | None
    """None only in tests: the broker has no slaves."""
    stats: BrokerStats
    client: RemotingClient
    """For calls to name servers, controllers and the master."""
    readers: Executor
    """For reads that wait for the disk: threads apart from those that write."""
    fail: Callable[[Exception], None]
    """Asks the program to stop this broker, with the cause; returns at once."""
    members: MemberGroup = field(default_factory=MemberGroup)
    """The live replicas of this broker's set, as the name servers know them."""
    assume_role: Callable[[], None] = _no_role
    """Takes the role that `ReplicaPart` knows. A broker that prepares first calls it when it is ready."""
    neighbours: Callable[[], Iterable[Broker]] = tuple
    """The other brokers that run in this process; a container passes a function."""
    read_elsewhere: ReadElsewhere = _read_nothing
    """Reads a message of another broker set; `EscapePart` sets it."""
    may_send: Callable[[str | None, str, str], bool] = _anyone
    """Whether a user at ``ip:port`` may send to a topic; `AuthPart` sets it."""
    runtime_info: list[Callable[[], Mapping[str, object]]] = field(default_factory=list)
    """Figures of features for GET_BROKER_RUNTIME_INFO; parts add a function."""
    address: str = ""
    """``ip:port`` under which clients reach this broker (brokerIP1:listenPort); known once it listens."""
    ha_address: str = ""
    """``ip:port`` of the replication port (brokerIP2:haListenPort); known once it listens."""

    def masters_beside(self) -> Iterator[Broker]:
        """The other masters of this cluster in this process."""
        cluster = self.settings.broker.broker_cluster_name
        for other in self.neighbours():
            if other is self or not other.role.is_master or other.role.stopping:
                continue
            if other.settings.broker.broker_cluster_name == cluster:
                yield other
