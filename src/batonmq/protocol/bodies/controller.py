"""What controllers say about replica groups.

Source: the `protocol.body` package of Apache RocketMQ 5.
"""

from __future__ import annotations

from msgspec import field

from batonmq.protocol.bodies.routes import BrokerMemberGroup
from batonmq.protocol.json import Body


class SyncStateSet(Body):
    """Broker ids that hold all acknowledged messages, and the version of that set."""

    sync_state_set: list[int] = field(default_factory=list)
    sync_state_set_epoch: int = 0


class ReplicaIdentity(Body):
    broker_name: str = ""
    broker_id: int = 0
    broker_address: str = ""
    alive: bool = False


class ReplicasInfo(Body):
    master_broker_id: int | None = None
    master_address: str | None = None
    master_epoch: int = 0
    sync_state_set_epoch: int = 0
    in_sync_replicas: list[ReplicaIdentity] = field(default_factory=list)
    not_in_sync_replicas: list[ReplicaIdentity] = field(default_factory=list)


class BrokerReplicasInfo(Body):
    """Broker name -> who replicates it, as the controller sees it."""

    replicas_info_table: dict[str, ReplicasInfo] = field(default_factory=dict)


class ElectMasterResponseBody(Body):
    broker_member_group: BrokerMemberGroup | None = None
    sync_state_set: list[int] = field(default_factory=list)


class RoleChangeNotifyEntry(Body):
    broker_member_group: BrokerMemberGroup | None = None
    master_address: str | None = None
    master_broker_id: int | None = None
    master_epoch: int = 0
    sync_state_set_epoch: int = 0
    sync_state_set: list[int] = field(default_factory=list)
