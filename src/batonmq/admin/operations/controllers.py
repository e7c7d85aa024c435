"""The group of controllers: who leads, its members and their change, its configuration.

A change of members is a step that is repeated until it is done or the time is up. Each attempt goes to the
leader of that moment. All steps may be repeated, so a change that was interrupted can be requested again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from batonmq.admin.session import Admin, AdminError, NobodyListens, one_key
from batonmq.common.addresses import split_addresses
from batonmq.net.connection import Response
from batonmq.net.errors import NetError
from batonmq.protocol.bodies.controller import ControllerMembers, decode_controller_members
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers import controller as wire
from batonmq.protocol.registry import Header

PAUSE_S: Final = 0.3
_RESTART_S: Final = 3
"""How long addresses may refuse connections before they are taken for wrong."""
_PASSING: Final = frozenset(
    {
        ResponseCode.CONTROLLER_NOT_LEADER,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.CONTROLLER_JRAFT_INTERNAL_ERROR,
    }
)
"""Refusals that may not be repeated a little later, or at another controller."""

T = TypeVar("T")


async def metadata(admin: Admin, controllers: str) -> wire.GetMetadataReply:
    """Group, leader and peers, as the first controller that answers knows them."""
    answer = await admin.ask_controller(controllers, wire.GetMetadata())
    assert isinstance(answer.header, wire.GetMetadataReply)
    return answer.header


async def configs(admin: Admin, controllers: str) -> dict[str, dict[str, str]]:
    """Controller's address -> configuration key -> value."""
    return await admin.configs(split_addresses(controllers), wire.GetControllerConfig())


async def change_config(admin: Admin, controllers: str, key: str, value: str) -> list[str]:
    """Set a key of running controllers; their addresses."""
    addresses = split_addresses(controllers)
    await admin.ask_each(addresses, wire.UpdateControllerConfig(), one_key(key, value))
    return addresses


async def members(admin: Admin, controllers: str) -> ControllerMembers:
    """The members as the leader knows them; without a leader, as the first controller that answers does."""
    try:
        address = await admin.leading_controller(controllers)
        answer = await admin.ask(address, wire.GetControllerMembers())
    except (AdminError, NetError):
        answer = await admin.ask_controller(controllers, wire.GetControllerMembers())
    return decode_controller_members(bytes(answer.body))


async def add(admin: Admin, controllers: str, node_id: str, raft: str, rpc: str, wait_s: float) -> None:
    """Take a new controller into the group; returns when it is a voter.

    Args:
        node_id: its id; no member ever had it.
        raft: where the other controllers reach it, ``host:port``.
        rpc: where brokers reach it, if that is another port; else empty.
        wait_s: after so many seconds `AdminError` is raised.
    """
    await _check_newcomer(admin, controllers, node_id, raft, rpc)

    async def step() -> wire.AddControllerReply | None:
        answer = (await _to_leader(admin, controllers, wire.AddController(node_id, raft, rpc))).header
        assert isinstance(answer, wire.AddControllerReply)
        return answer if answer.state == "voter" else None

    await _until(
        step,
        wait_s,
        f"{node_id} is a learner and has not caught up: see getControllerMembers, and give the command again",
    )


async def versions(admin: Admin, group: ControllerMembers) -> dict[str, str | None]:
    """Id of each member -> the version of BatonMQ that it runs; None if it does not say, or not answer."""

    async def ask(address: str) -> str | None:
        try:
            answer = await admin.ask(address, wire.GetControllerMembers())
            return decode_controller_members(bytes(answer.body)).version
        except (AdminError, NetError, MQError):
            return None

    found = await asyncio.gather(*(ask(each.rpc_address) for each in group.members))
    return {each.controller_id: version for each, version in zip(group.members, found, strict=True)}


async def remove(admin: Admin, controllers: str, node_id: str, wait_s: float) -> bool:
    """Take a controller out of the group; returns when it is not a member.

    Returns:
        Whether it was one.

    Raises:
        AdminError: after `wait_s` seconds.
    """
    was_member = False

    async def step() -> bool | None:
        nonlocal was_member
        known = await members(admin, controllers)
        if node_id in (each.controller_id for each in known.members):
            was_member = True
            await _to_leader(admin, controllers, wire.RemoveController(node_id))
            return None  # the next attempt sees, at the leader, whether it was decided
        return True if known.leader_id is not None and known.settled else None

    await _until(step, wait_s, f"whether {node_id} is removed is not known: give the command again")
    return was_member


async def transfer(admin: Admin, controllers: str, node_id: str, wait_s: float) -> None:
    """Make a controller the leader; returns when it leads. Raises `AdminError` after `wait_s` seconds."""

    async def step() -> bool | None:
        if (await members(admin, controllers)).leader_id == node_id:
            return True
        await _to_leader(admin, controllers, wire.TransferControllerLeadership(node_id))
        return None

    await _until(step, wait_s, f"{node_id} does not lead: see getControllerMembers")


async def replace(
    admin: Admin, controllers: str, old_id: str, node_id: str, raft: str, rpc: str, wait_s: float
) -> bool:
    """Put a new controller in the place of `old_id`. The other arguments are those of `add`.

    The old one goes first only where the new one has its address, and only if the new one is there. Each of
    the two steps may take `wait_s`.

    Returns:
        Whether `old_id` was a member. It is none if the command is given again.
    """
    if old_id == node_id:
        raise AdminError(f"{old_id} is the controller to replace: the new one needs another id")
    known = await members(admin, controllers)
    addresses = {each.controller_id: each.raft_address for each in known.members}
    if addresses.get(old_id) == raft:
        await _check_newcomer(admin, controllers, node_id, raft, rpc)
        await remove(admin, controllers, old_id, wait_s)
    await add(admin, controllers, node_id, raft, rpc, wait_s)
    await remove(admin, controllers, old_id, wait_s)
    return old_id in addresses


async def _to_leader(admin: Admin, controllers: str, header: Header) -> Response:
    return await admin.ask(await admin.leading_controller(controllers), header)


async def _check_newcomer(admin: Admin, controllers: str, node_id: str, raft: str, rpc: str) -> None:
    """Raise `AdminError` unless that controller of this group listens there and waits to be added.

    Never advises an empty directory for a member: it may have voted, and must not forget that.
    """
    address = rpc or raft
    group = await members(admin, controllers)
    roles = {each.controller_id: (each.role, each.raft_address) for each in group.members}
    role, known_at = roles.get(node_id, ("", raft))
    if known_at != raft:
        raise AdminError(
            f"{node_id} is a member already, at {known_at}; "
            f"a new controller needs an id that no member ever had"
        )
    try:
        answer = await admin.ask(address, wire.GetControllerMembers())
    except NetError as error:
        advice = (
            f"{node_id} is a member already ({role}): start it again with its directory"
            if role
            else f"start {node_id} first, with an empty directory and controllerJoinRunningGroup=true"
        )
        raise AdminError(f"{error}; {advice}") from None
    found = decode_controller_members(bytes(answer.body))
    if (found.group, found.answered_by) != (group.group, node_id):
        raise AdminError(
            f"at {address} is controller {found.answered_by} of group {found.group}, not {node_id} of "
            f"{group.group}"
        )
    if role:
        return
    if found.standing == "voter":
        raise AdminError(
            f"{node_id} was started to create a separate Raft group: start it with an empty directory and "
            f"controllerJoinRunningGroup=true"
        )
    if found.standing == "removed":
        raise AdminError(
            f"{node_id} was removed from the group, or was not started to join it: start it with an empty "
            f"directory, an id that no member ever had and controllerJoinRunningGroup=true"
        )


async def _until(step: Callable[[], Awaitable[T | None]], wait_s: float, otherwise: str) -> T:
    """Repeat `step` until it does not return None. Raises `AdminError` when the time is up, and sooner if
    nobody listens."""
    loop = asyncio.get_running_loop()
    began, last = loop.time(), ""
    while True:
        try:
            done = await step()
            if done is not None:
                return done
            last = ""
        except MQError as error:
            if error.code not in _PASSING:
                raise
            last = str(error)
        except NobodyListens:
            if loop.time() > began + _RESTART_S:
                raise
        except (NetError, AdminError) as error:  # during an election nobody knows a leader
            last = str(error)
        if loop.time() > began + wait_s:
            raise AdminError(otherwise + (f" ({last})" if last else ""))
        await asyncio.sleep(PAUSE_S)
