"""The election policy: chooses the master. No I/O; the state machine carries the decision out.

The order of preference is RocketMQ's (`DefaultElectPolicy`; RIP-44, "Elect Master"): a living master stays,
unless another broker is designated; then the living member of the SyncStateSet with the highest
(epoch, max offset), ties going to the lower `electionPriority` and then to the lower id. Replicas outside
the SyncStateSet may lack acknowledged messages, so they are considered only when an unclean election is
allowed (`enableElectUncleanMaster`), and only after nobody in the set is left.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from batonmq.controller.heartbeats import LiveBroker
from batonmq.controller.replicas import BrokerSet


def elect(
    broker_set: BrokerSet,
    alive: Mapping[int, LiveBroker],
    *,
    asking: int | None,
    designated: int | None,
    allow_unclean: bool,
) -> int | None:
    """The id of the master to be, or None when nobody is eligible.

    `asking` is the broker that tries to become master (or None), `designated` the one an operator demands;
    `alive` holds the living replicas.
    """
    if broker_set.never_had_master and asking is not None:
        # The set holds no acknowledged message yet: whoever asks first may have it.
        return asking
    master = _best(broker_set.sync_state_set, alive, broker_set.master_id, designated)
    if master is None and allow_unclean:
        master = _best(broker_set.replicas, alive, broker_set.master_id, designated)
    return master


def _best(
    candidates: Iterable[int], alive: Mapping[int, LiveBroker], old_master: int | None, designated: int | None
) -> int | None:
    eligible = [broker_id for broker_id in candidates if broker_id in alive]
    if designated is not None:
        return designated if designated in eligible else None
    if old_master in eligible:
        return old_master
    return max(eligible, key=lambda broker_id: _rank(broker_id, alive[broker_id]), default=None)


def _rank(broker_id: int, live: LiveBroker) -> tuple[int, int, int, int]:
    return live.epoch, live.max_offset, -live.election_priority, -broker_id
