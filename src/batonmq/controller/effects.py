"""The outcome of an event of the replicated log: an answer, and effects for the leader to act on."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.json import Body
from batonmq.protocol.registry import Header


class Election(msgspec.Struct, frozen=True, tag="election", tag_field="event"):
    """An election was decided. `result` is new-master, kept-master, no-master or refused."""

    cluster_name: str
    broker_name: str
    cause: str
    result: str
    old_master: int | None
    new_master: int | None
    master_epoch: int
    sync_state_set_epoch: int
    candidates: tuple[int, ...]
    """The SyncStateSet that was elected from."""
    alive: tuple[int, ...]
    asked_for: int
    unclean: bool


class SyncStateSetAltered(msgspec.Struct, frozen=True, tag="sync-state-set", tag_field="event"):
    broker_name: str
    before: tuple[int, ...]
    after: tuple[int, ...]
    sync_state_set_epoch: int
    master_epoch: int


class ReplicaAdded(msgspec.Struct, frozen=True, tag="replica-added", tag_field="event"):
    cluster_name: str
    broker_name: str
    broker_id: int
    address: str


class ReplicaMoved(msgspec.Struct, frozen=True, tag="replica-moved", tag_field="event"):
    broker_name: str
    broker_id: int
    old_address: str
    address: str


class ReplicaUp(msgspec.Struct, frozen=True, tag="replica-up", tag_field="event"):
    """First heartbeat of a replica that was not counted as alive."""

    broker_name: str
    broker_id: int
    epoch: int
    max_offset: int


class ReplicaDown(msgspec.Struct, frozen=True, tag="replica-down", tag_field="event"):
    """A replica stopped counting as alive: `cause` is channel-closed, silent (`suspicion.py`),
    heartbeat-timeout or restarted."""

    broker_name: str
    broker_id: int
    cause: str


class Cleaned(msgspec.Struct, frozen=True, tag="cleaned", tag_field="event"):
    """An operator removed replicas; no ids mean the whole broker set."""

    broker_name: str
    broker_ids: tuple[int, ...]


class LeadershipStarted(msgspec.Struct, frozen=True, tag="leader", tag_field="event"):
    node_id: str


Effect: TypeAlias = (
    Election
    | SyncStateSetAltered
    | ReplicaAdded
    | ReplicaMoved
    | ReplicaUp
    | ReplicaDown
    | Cleaned
    | LeadershipStarted
)


class Outcome(msgspec.Struct, frozen=True):
    """The answer to one event, and what the leader has to do about it."""

    code: int = 0
    remark: str | None = None
    header: Header | None = None
    body: Body | None = None
    effects: tuple[Effect, ...] = ()


NOTHING = Outcome()
"""Success, with nothing to answer or to do."""


def refusal(code: ResponseCode, remark: str, *effects: Effect) -> Outcome:
    return Outcome(code=int(code), remark=remark, effects=effects)
