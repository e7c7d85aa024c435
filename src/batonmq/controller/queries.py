"""Answers to requests that read the state of broker sets and change nothing."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from batonmq.controller.replicas import FIRST_BROKER_ID, BrokerSets
from batonmq.net.dispatch import Reply
from batonmq.protocol.bodies.controller import (
    BrokerReplicasInfo,
    ReplicaIdentity,
    ReplicasInfo,
    SyncStateSetBody,
)
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.headers import controller as wire
from batonmq.protocol.json import encode

KEPT_ANSWERS = 16_384
"""Answers to getReplicaInfo that are kept, each some 700 bytes. Brokers ask every five seconds, and the
answer seldom changes."""


def replica_info(broker_sets: BrokerSets, broker_name: str) -> Reply:
    """Answer to getReplicaInfo."""
    broker_set = broker_sets.get(broker_name)
    if broker_set is None:
        return Reply(
            code=int(ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST),
            remark=f"broker set {broker_name} is not registered",
        )
    return _replica_info(
        broker_set.master_id,
        broker_set.master_address,
        broker_set.master_epoch,
        broker_set.sync_state_set,
        broker_set.sync_state_set_epoch,
    )


@lru_cache(maxsize=KEPT_ANSWERS)
def _replica_info(
    master_id: int | None,
    master_address: str | None,
    master_epoch: int,
    sync_state_set: tuple[int, ...],
    sync_state_set_epoch: int,
) -> Reply:
    header = wire.GetReplicaInfoReply(master_id, master_address, master_epoch)
    return Reply(ext=header.to_ext(), body=encode(SyncStateSetBody(sync_state_set, sync_state_set_epoch)))


def next_broker_id(broker_sets: BrokerSets, cluster_name: str | None, broker_name: str) -> Reply:
    """Answer to getNextBrokerId."""
    broker_set = broker_sets.get(broker_name)
    next_id = FIRST_BROKER_ID if broker_set is None else broker_set.next_broker_id
    return Reply(
        wire.GetNextBrokerIdReply(cluster_name=cluster_name, broker_name=broker_name, next_broker_id=next_id)
    )


def sync_state_data(broker_sets: BrokerSets, broker_names: Iterable[str], now_ms: int) -> Reply:
    """Answer to getSyncStateSet; names that are not registered are left out."""
    table: dict[str, ReplicasInfo] = {}
    for name in broker_names:
        broker_set = broker_sets.get(name)
        if broker_set is None:
            continue
        in_sync: list[ReplicaIdentity] = []
        behind: list[ReplicaIdentity] = []
        for broker_id, replica in sorted(broker_set.replicas.items()):
            identity = ReplicaIdentity(
                name, broker_id, replica.address, broker_set.is_alive(broker_id, now_ms)
            )
            (in_sync if broker_id in broker_set.sync_state_set else behind).append(identity)
        table[name] = ReplicasInfo(
            in_sync,
            behind,
            broker_set.master_id,
            broker_set.master_address,
            broker_set.master_epoch,
            broker_set.sync_state_set_epoch,
        )
    return Reply(body=encode(BrokerReplicasInfo(table)))
