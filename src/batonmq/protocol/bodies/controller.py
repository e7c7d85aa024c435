"""Bodies of controllers' answers about broker sets and about themselves.

Layouts as Apache RocketMQ 5.5 sends and expects them; what Java leaves out when null has a default. Sets of
broker ids are JSON arrays.
"""

from __future__ import annotations

import msgspec

from batonmq.protocol.bodies.routes import BrokerMemberGroup
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.json import Body
from batonmq.protocol.registry import I32, I64


class SyncStateSetBody(Body):
    """Broker ids that hold all acknowledged messages, and the version of that set: answer to registration and
    getReplicaInfo, body of alterSyncStateSet and of role change notices."""

    sync_state_set: tuple[I64, ...] = ()
    sync_state_set_epoch: I32 = 0


class ElectMasterBody(Body, omit_defaults=True):
    """Answer to an election.

    Brokers read `brokerMemberGroup` and `syncStateSet`; mqadmin's electMaster reads the same body as if it
    were the member group itself, so the group's fields are repeated at the top.
    """

    sync_state_set: tuple[int, ...] = ()
    broker_member_group: BrokerMemberGroup | None = None
    cluster: str | None = None
    broker_name: str | None = None
    broker_addrs: dict[int, str] | None = None


class ReplicaIdentity(Body):
    """One replica in the answer to getSyncStateSet."""

    broker_name: str = ""
    broker_id: int = 0
    broker_address: str = ""
    alive: bool = False


class ReplicasInfo(Body, omit_defaults=True):
    """One broker set in the answer to getSyncStateSet."""

    in_sync_replicas: list[ReplicaIdentity]
    not_in_sync_replicas: list[ReplicaIdentity]
    master_broker_id: int | None = None
    master_address: str | None = None
    master_epoch: int | None = None
    sync_state_set_epoch: int | None = None


class BrokerReplicasInfo(Body):
    """Answer to getSyncStateSet: broker name -> what the controller knows of the set."""

    replicas_info_table: dict[str, ReplicasInfo] = {}


class ControllerMember(Body):
    """One controller in the answer to GetControllerMembers."""

    controller_id: str
    raft_address: str
    rpc_address: str
    role: str
    """leader, voter or learner."""
    answers: bool | None = None
    """Whether it answered the leader within an election timeout, and the leader knows its log; None from any
    other controller."""
    lag: int | None = None
    """How many log entries it is behind; None if it does not answer, and from any other than the leader."""


class ControllerMembers(Body):
    """Answer to GetControllerMembers, as the one that was asked knows it."""

    group: str
    answered_by: str
    """Id of the controller that was asked."""
    standing: str
    """What that one is to the group: voter, learner, joining (waits to be added) or removed."""
    leader_id: str | None
    term: int
    commit_index: int
    settled: bool
    """No change is under way."""
    members: list[ControllerMember]
    version: str | None = None
    """Of BatonMQ, at the one that was asked; 0.1.0 does not say it."""


_members_decoder = msgspec.json.Decoder(ControllerMembers)


def decode_controller_members(body: bytes | memoryview) -> ControllerMembers:
    """Raises `MQError` CONTROLLER_INVALID_REQUEST when it is none."""
    try:
        return _members_decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MQError(ResponseCode.CONTROLLER_INVALID_REQUEST, f"no list of members: {error}") from error


_sync_state_set_decoder = msgspec.json.Decoder(SyncStateSetBody)
_names_decoder = msgspec.json.Decoder(list[str])


def decode_sync_state_set(body: bytes | memoryview) -> SyncStateSetBody:
    """Reads the JSON body; raises `MQError` CONTROLLER_INVALID_REQUEST when it is none."""
    try:
        return _sync_state_set_decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MQError(
            ResponseCode.CONTROLLER_INVALID_REQUEST, f"body is not a SyncStateSet: {error}"
        ) from error


def decode_broker_names(body: bytes | memoryview) -> list[str]:
    """Reads the JSON list of names that getSyncStateSet sends; raises `MQError` as above."""
    try:
        return _names_decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MQError(
            ResponseCode.CONTROLLER_INVALID_REQUEST, f"body is not a list of broker names: {error}"
        ) from error
