"""Scans of a leader: finds brokers that fell silent, and broker sets that need another master."""

from __future__ import annotations

from collections.abc import Iterable

from batonmq.controller.replicas import BrokerSet, BrokerSets


def silent_brokers(broker_sets: BrokerSets, now_ms: int) -> list[tuple[BrokerSet, int]]:
    """Replicas counted as alive whose heartbeats stopped.

    If a whole set is silent, its replicas are listed together, once the last of them has timed out: otherwise
    one could win an election only because its last heartbeat came a moment after the master's.
    """
    found = []
    for broker_set in broker_sets.values():
        # Every set is checked four times a second, and nearly all are well: hence no calls here.
        for live in broker_set.live.values():
            if now_ms - live.updated_ms > live.timeout_ms:
                break
        else:
            continue
        silent = [number for number, live in broker_set.live.items() if not live.is_alive(now_ms)]
        if len(silent) == len(broker_set.live) or not broker_set.is_silent(now_ms):
            found += [(broker_set, broker_id) for broker_id in silent]
    return found


def sets_to_elect(broker_sets: BrokerSets, now_ms: int, *, allow_unclean: bool) -> list[BrokerSet]:
    """Sets whose master is gone although some replica lives, where an election would change something."""
    found = []
    for broker_set in broker_sets.values():
        master = broker_set.master_id
        if broker_set.never_had_master or broker_set.is_alive(master, now_ms):
            continue
        if master in broker_set.live and broker_set.is_silent(now_ms):
            continue
        eligible: Iterable[int] = broker_set.replicas if allow_unclean else broker_set.sync_state_set
        if any(broker_set.is_alive(broker_id, now_ms) for broker_id in eligible) or (
            master is not None and broker_set.alive(now_ms)
        ):
            found.append(broker_set)
    return found


def grace_ms(timeout_ms: int) -> int:
    """Time that a broker with this timeout has at least to reach a new leader: 1.2 of 3 s. It learns of the
    leader with its next heartbeat, up to a second later, and perhaps reaches it through another controller
    only. What the new leader itself has received says nothing about such a broker."""
    return timeout_ms * 2 // 5


def suspect(broker_set: BrokerSet, reporter_id: int, master_epoch: int) -> int | None:
    """The id of the master that a replica's report concerns; None if the report changes nothing.

    The reporter must be in sync, so that it may replace the master, and the report must be about the master
    of the current epoch.
    """
    master_id = broker_set.master_id
    if (
        master_id is None
        or master_epoch != broker_set.master_epoch
        or reporter_id == master_id
        or reporter_id not in broker_set.sync_state_set
        or reporter_id not in broker_set.live
        or master_id not in broker_set.live
    ):
        return None
    return master_id
