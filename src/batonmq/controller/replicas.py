"""The state of a broker set: its replicas, their SyncStateSet and their master.

Owns the rules by which this state may change, so that no caller can break them:

- the master epoch rises with every change of the master, also when the master is lost;
- the SyncStateSet epoch rises with every change of the set;
- the master, if there is one, is a member of the SyncStateSet, and all members are registered replicas.

Names and numbers follow RocketMQ's controller mode (RIP-44): ids start at 1, epochs at 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Final, TypeAlias

import msgspec

from batonmq.controller.heartbeats import LiveBroker

FIRST_BROKER_ID: Final = 1
Epoch: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
"""Rises by one: no real epoch is so large, and a larger one could not be encoded."""


class Replica(msgspec.Struct, array_like=True):
    """One registered replica: `address` is host:port for clients; the check code identifies the broker that
    claimed the id."""

    address: str
    register_check_code: str


class BrokerSet(msgspec.Struct, array_like=True):
    """One broker set."""

    cluster_name: str
    broker_name: str
    replicas: dict[int, Replica] = msgspec.field(default_factory=dict)
    next_broker_id: int = FIRST_BROKER_ID
    sync_state_set: tuple[int, ...] = ()
    """Ascending ids."""
    sync_state_set_epoch: Epoch = 0
    master_id: int | None = None
    master_epoch: Epoch = 0
    live: dict[int, LiveBroker] = msgspec.field(default_factory=dict)
    """Last heartbeat of every replica that is not known to be down."""

    def __post_init__(self) -> None:
        """Checks what is decoded from bytes, too. Raises ValueError naming the rule that is broken."""
        replicas, in_sync = self.replicas.keys(), self.sync_state_set
        if not replicas >= {*in_sync, *self.live}:
            raise ValueError("some that are in sync or alive are not registered")
        if tuple(sorted(set(in_sync))) != in_sync:
            raise ValueError("the SyncStateSet is not in ascending order")
        if self.master_id is not None and self.master_id not in in_sync:
            raise ValueError(f"the master {self.master_id} is not in the SyncStateSet")
        if replicas and not FIRST_BROKER_ID <= min(replicas) <= max(replicas) < self.next_broker_id:
            raise ValueError(f"the next broker id {self.next_broker_id} is taken, or an id is none")

    @property
    def never_had_master(self) -> bool:
        return self.master_epoch == 0

    @property
    def master_address(self) -> str | None:
        return self.address(self.master_id)

    def address(self, broker_id: int | None) -> str | None:
        replica = None if broker_id is None else self.replicas.get(broker_id)
        return None if replica is None else replica.address

    def is_alive(self, broker_id: int | None, now_ms: int) -> bool:
        """Whether the replica's last heartbeat is within the timeout it asked for."""
        live = None if broker_id is None else self.live.get(broker_id)
        return live is not None and live.is_alive(now_ms)

    def alive(self, now_ms: int) -> dict[int, LiveBroker]:
        return {broker_id: live for broker_id, live in self.live.items() if live.is_alive(now_ms)}

    def is_silent(self, now_ms: int) -> bool:
        """Whether each replica counted as alive has sent no heartbeat for half its timeout.

        It is more likely that the network to all of them is cut than that all are down, and an election helps
        in neither case.
        """
        return all(now_ms - live.updated_ms > live.timeout_ms // 2 for live in self.live.values())

    def add_replica(self, broker_id: int, address: str, register_check_code: str) -> None:
        self.replicas[broker_id] = Replica(address, register_check_code)
        # Java counts up by one only and then offers an id that is taken, when ids were claimed out of order.
        self.next_broker_id = max(self.next_broker_id, broker_id + 1)

    def set_sync_state_set(self, members: Iterable[int]) -> None:
        self.sync_state_set = tuple(sorted(set(members)))
        assert all(member in self.replicas for member in self.sync_state_set), self
        assert self.master_id is None or self.master_id in self.sync_state_set, self
        self.sync_state_set_epoch += 1

    def set_master(self, broker_id: int) -> None:
        """Makes `broker_id` master of a new epoch; it alone is in sync until the others have caught up."""
        assert broker_id in self.replicas, self
        self.master_id = broker_id
        self.master_epoch += 1
        self.set_sync_state_set((broker_id,))

    def lose_master(self) -> None:
        """No master from here on; the SyncStateSet stays: its members hold all acknowledged messages."""
        assert self.master_id is not None, self
        self.master_id = None
        self.master_epoch += 1

    def remove_replicas(self, broker_ids: Iterable[int]) -> None:
        """Forgets replicas. Where the SyncStateSet shrinks by this its epoch rises, so that a master unaware
        of it is fenced when it next alters the set (Java leaves the epoch as it is)."""
        gone = set(broker_ids)
        for broker_id in gone:
            self.replicas.pop(broker_id, None)
            self.live.pop(broker_id, None)
        if self.master_id in gone:
            self.lose_master()
        if gone & set(self.sync_state_set):
            self.set_sync_state_set(member for member in self.sync_state_set if member not in gone)


BrokerSets: TypeAlias = Mapping[str, BrokerSet]
"""All broker sets, by name."""
