"""Requests to and from the controller (codes 1001 to 1013); their bodies are in `bodies/controller.py`.

Layouts as Apache RocketMQ 5.5 sends and expects them. A `None` in a response header is left out, which Java
reads as null. Sets of broker ids are JSON arrays.
"""

from __future__ import annotations

from batonmq.protocol.codes import RequestCode
from batonmq.protocol.registry import I32, I64, Header, request


class AlterSyncStateSetReply(Header):
    new_sync_state_set_epoch: I32


@request(RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET, response=AlterSyncStateSetReply)
class AlterSyncStateSet(Header):
    """A master changes its SyncStateSet; the body is the new set with the epoch of the old one.

    ``fenceRefused`` (ours): a refusal raises the epoch of the SyncStateSet. Copies of the request that arrive
    later are then refused, too. RocketMQ's controllers ignore it.
    """

    broker_name: str
    master_broker_id: I64
    master_epoch: I32
    invoke_time: I64 = 0
    fence_refused: bool | None = None


class ElectMasterReply(Header):
    master_broker_id: I64 | None = None
    master_address: str | None = None
    master_epoch: I32 | None = None
    sync_state_set_epoch: I32 | None = None


@request(RequestCode.CONTROLLER_ELECT_MASTER, response=ElectMasterReply)
class ElectMaster(Header):
    """A broker asks to become master, or (designateElect) an operator demands it; id -1: whoever is best."""

    cluster_name: str = ""
    broker_name: str = ""
    broker_id: I64 = -1
    designate_elect: bool = False
    invoke_time: I64 = 0


class RegisterBrokerToControllerReply(Header):
    cluster_name: str
    broker_name: str
    master_broker_id: I64 | None = None
    master_address: str | None = None
    master_epoch: I32 | None = None
    sync_state_set_epoch: I32 | None = None


@request(RequestCode.CONTROLLER_REGISTER_BROKER, response=RegisterBrokerToControllerReply)
class RegisterBrokerToController(Header):
    """A broker that owns its id reports its address; answered with the master, if one is alive."""

    cluster_name: str
    broker_name: str
    broker_id: I64
    broker_address: str
    invoke_time: I64 = 0


class GetReplicaInfoReply(Header):
    master_broker_id: I64 | None = None
    master_address: str | None = None
    master_epoch: I32 | None = None


@request(RequestCode.CONTROLLER_GET_REPLICA_INFO, response=GetReplicaInfoReply)
class GetReplicaInfo(Header):
    """Who is master of a broker set; the body of the answer is its SyncStateSet."""

    broker_name: str


class GetMetadataReply(Header, kw_only=True):
    group: str
    controller_leader_id: str | None = None
    controller_leader_address: str | None = None
    is_leader: bool
    peers: str
    """`id:host:port;` for each peer (controllerType=DLedger) or `host:port;` (jRaft)."""


@request(RequestCode.CONTROLLER_GET_METADATA_INFO, response=GetMetadataReply)
class GetMetadata(Header):
    """Where the leading controller is; every controller answers it."""


@request(RequestCode.CONTROLLER_GET_SYNC_STATE_DATA)
class GetSyncStateData(Header):
    """mqadmin getSyncStateSet: the body is a JSON list of broker names."""


@request(RequestCode.NOTIFY_BROKER_ROLE_CHANGED)
class NotifyBrokerRoleChanged(Header):
    """Controller to broker: there is a new master; the body is the new SyncStateSet."""

    master_address: str | None = None
    master_epoch: I32 | None = None
    sync_state_set_epoch: I32 | None = None
    master_broker_id: I64 | None = None


@request(RequestCode.UPDATE_CONTROLLER_CONFIG)
class UpdateControllerConfig(Header):
    """The body holds `key=value` lines."""


@request(RequestCode.GET_CONTROLLER_CONFIG)
class GetControllerConfig(Header):
    """Answered with all keys as `key=value` lines."""


@request(RequestCode.CLEAN_BROKER_DATA)
class CleanBrokerData(Header):
    """mqadmin cleanBrokerMetadata; ids are separated by `;`, none means the whole broker set."""

    broker_name: str
    cluster_name: str | None = None
    broker_controller_ids_to_clean: str | None = None
    is_clean_living_broker: bool = False
    invoke_time: I64 = 0


class GetNextBrokerIdReply(Header, kw_only=True):
    cluster_name: str | None = None
    broker_name: str
    next_broker_id: I64


@request(RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, response=GetNextBrokerIdReply)
class GetNextBrokerId(Header):
    """A new broker asks which id it may try to claim."""

    broker_name: str
    cluster_name: str | None = None


class ApplyBrokerIdReply(Header, kw_only=True):
    cluster_name: str | None = None
    broker_name: str


@request(RequestCode.CONTROLLER_APPLY_BROKER_ID, response=ApplyBrokerIdReply)
class ApplyBrokerId(Header):
    """A broker claims an id. The check code is `address;timestamp`."""

    broker_name: str
    applied_broker_id: I64
    register_check_code: str
    cluster_name: str = ""


@request(RequestCode.GET_CONTROLLER_MEMBERS)
class GetControllerMembers(Header):
    """Who belongs to the group of controllers; every controller answers. Ours only."""


class AddControllerReply(Header):
    state: str
    """voter; or learner, if it has yet to catch up: ask again."""
    lag: I64 | None = None
    """How many log entries it is behind; None if it does not answer."""


@request(RequestCode.ADD_CONTROLLER, response=AddControllerReply)
class AddController(Header):
    """An operator adds a controller, to the leader; repeated until it is a voter. Ours only."""

    controller_id: str
    raft_address: str
    rpc_address: str = ""
    """Where it serves brokers, if that is another port."""


@request(RequestCode.REMOVE_CONTROLLER)
class RemoveController(Header):
    """An operator takes a controller out of the group, to the leader. Ours only."""

    controller_id: str


@request(RequestCode.TRANSFER_CONTROLLER_LEADERSHIP)
class TransferControllerLeadership(Header):
    """An operator makes another controller the leader. Ours only."""

    controller_id: str


@request(RequestCode.RAFT_MESSAGE)
class RaftMessage(Header):
    """Raft traffic of one loop turn from one node of a group to another; oneway. The body is opaque here."""

    group: str
    sender: str


@request(RequestCode.FORWARD_TO_LEADER)
class ForwardToLeader(Header):
    """A broker that cannot reach the leading controller asks another one to pass a request on.

    The body is the request as a frame, with its length; that of the answer is the leader's answer, likewise.
    CONTROLLER_NOT_LEADER: this controller knows no leader, or does not reach it.
    """
