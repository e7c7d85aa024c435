"""Metrics of a replica: its role, its epoch, its broker set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from batonmq.common.metrics import Kind, Metric, Source

if TYPE_CHECKING:
    from batonmq.broker.context import Broker

IS_MASTER: Final = Metric("batonmq_broker_is_master", Kind.GAUGE, "1 on the master, 0 on slaves")
EPOCH: Final = Metric("batonmq_broker_epoch", Kind.GAUGE, "Master epoch (controller mode)")
IN_SYNC: Final = Metric(
    "batonmq_in_sync_replicas", Kind.GAUGE, "Replicas in sync, as the master sees it; 1 on a slave"
)
CONFIRM_BEHIND: Final = Metric(
    "batonmq_confirm_behind_bytes", Kind.GAUGE, "Stored and not yet confirmed by all in sync", unit="bytes"
)
METRICS: Final = (IS_MASTER, EPOCH, IN_SYNC, CONFIRM_BEHIND)


def sources(broker: Broker) -> Mapping[Metric, Source]:
    role, store = broker.role, broker.store
    return {
        IS_MASTER: lambda: [((), int(role.is_master))],
        EPOCH: lambda: [((), role.epoch)],
        IN_SYNC: lambda: [((), 1 if broker.replication is None else broker.replication.in_sync_replicas)],
        CONFIRM_BEHIND: lambda: [((), max(0, store.max_offset - store.confirm_offset))],
    }
