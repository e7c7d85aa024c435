"""The two sides of replication: what the broker may ask of it, and what it needs of a store.

`Replication` is what every kind of replication offers, however roles are decided. What only one kind has is
on its class: epochs and the SyncStateSet on `HAService` (`autoswitch/service.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol


class ReplicaStatus(NamedTuple):
    """One slave as the master sees it; offsets in bytes."""

    broker_id: int
    address: str
    ack_offset: int
    next_offset: int
    in_sync: bool
    async_learner: bool
    bytes_per_second: int


class MasterStatus(NamedTuple):
    """The master as a slave sees it; times are wall clock, ms."""

    address: str
    last_read_ms: int
    last_write_ms: int
    bytes_per_second: int
    local_address: str = ""
    """This slave's end of the connection, ``ip:port``."""


class Replication(Protocol):
    """Replication of one store. Offsets are physical, in bytes; addresses are ``host:port``."""

    port: int
    """Port that slaves connect to; known after `start`."""
    on_progress: Callable[[], None]
    """Called when the confirm offset or a slave's ack moved; must dispatch the store."""
    on_followed: Callable[[], None]
    """Called on a slave when a link to its master is past the handshake."""

    async def start(self) -> None:
        """Listen. Raises OSError if the port is taken."""

    async def stop(self) -> None:
        """Close everything; the store stays open."""

    def wake(self) -> None:
        """The store has new bytes, or more of them are on disk: send them, move the confirm offset.

        The caller continues to dispatch and to answer what it can.
        """

    # -- while master

    @property
    def in_sync_replicas(self) -> int:
        """How many replicas must hold the next message, this master included."""

    def other_members(self) -> frozenset[int]:
        """Broker ids of the other replicas in sync; none unless this replica is master."""

    def acked_by(self, copies: int) -> int:
        """Highest offset that `copies` replicas hold, the master included; -1 if there are not so many."""

    def held_by_all(self) -> int:
        """How far all replicas in sync have the log, be it on this master's disk or not; -1 if unknown."""

    def replicas(self) -> list[ReplicaStatus]:
        """The slaves that are connected."""

    # -- while slave

    @property
    def following(self) -> bool:
        """Whether the link to the master is past the handshake."""

    def set_master_address(self, master_ha_address: str | None) -> None:
        """Where the master's replication port is; a link to another address is dropped."""

    def master(self) -> MasterStatus | None:
        """The link to the master; None without one."""


class ReplicatedLog(Protocol):
    """What replication needs of a store; `MessageStore` offers it. Offsets are physical, in bytes."""

    @property
    def min_offset(self) -> int: ...
    @property
    def max_offset(self) -> int: ...
    @property
    def flushed_offset(self) -> int: ...

    confirm_offset: int

    def confirmable(self, offset: int) -> int: ...
    def last_record_begin(self) -> int: ...
    def append_raw(self, offset: int, data: memoryview) -> None: ...
    def read(self, offset: int, max_bytes: int) -> memoryview: ...
    def reading(self, offset: int, size: int) -> Callable[[], bytes]: ...
    def truncate(self, offset: int) -> None: ...
    def discard(self) -> None: ...
    def cut_torn_tail(self) -> int: ...
    def dispatch(self) -> int: ...
    def flush(self) -> int: ...
