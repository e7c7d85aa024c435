"""Decodes controllers' answers: a role, a SyncStateSet. Checks every field."""

from __future__ import annotations

from typing import TypeVar

from batonmq.broker.replica.core import Role
from batonmq.ha.autoswitch.sync_state import SyncStateSet
from batonmq.net.connection import Response
from batonmq.protocol.bodies import controller as bodies
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers import controller as wire
from batonmq.protocol.json import decode
from batonmq.protocol.registry import Header

H = TypeVar("H", bound=Header)


def typed(response: Response, kind: type[H]) -> H:
    """The answer's header. Raises `MQError` if it is not a `kind`."""
    if not isinstance(response.header, kind):
        raise MQError(ResponseCode.SYSTEM_ERROR, f"the answer has no {kind.__name__}")
    return response.header


def sync_state_set_of(body: bytes | bytearray | memoryview) -> SyncStateSet:
    """Decode a SyncStateSet. Raises `MQError` if the body is not one."""
    try:
        decoded = decode(body, bodies.SyncStateSetBody)
    except ValueError as error:
        raise MQError(
            ResponseCode.SYSTEM_ERROR, f"the body of the answer is not a SyncStateSet: {error}"
        ) from None
    return SyncStateSet(frozenset(decoded.sync_state_set), decoded.sync_state_set_epoch)


def role_of(
    header: wire.GetReplicaInfoReply | wire.RegisterBrokerToControllerReply | wire.ElectMasterReply,
    body: bytes | bytearray | memoryview,
    sync_state_set_epoch: int | None = None,
) -> Role | None:
    """The role that an answer assigns; None if it names no master. `sync_state_set_epoch`: given if the
    header has it instead of the body. Raises `MQError` if the body is not a SyncStateSet."""
    if header.master_broker_id is None or not header.master_address or header.master_epoch is None:
        return None
    members = sync_state_set_of(body)
    if sync_state_set_epoch is not None:
        members = SyncStateSet(members.members, sync_state_set_epoch)
    return Role(header.master_epoch, header.master_broker_id, header.master_address, members)
