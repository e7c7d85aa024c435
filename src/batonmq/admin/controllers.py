"""Changes of the group of controllers: steps that are repeated until they are done or the time is up.

Each step goes to whoever leads just then, and may be given again: also this command, when it was broken off.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import click

from batonmq.admin.session import Admin, AdminError
from batonmq.net.connection import Response
from batonmq.net.errors import NetError
from batonmq.protocol.bodies.controller import ControllerMembers, decode_controller_members
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers import controller as wire
from batonmq.protocol.registry import Header

PAUSE_S: Final = 0.3
_PASSING: Final = frozenset(
    {
        ResponseCode.CONTROLLER_NOT_LEADER,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.CONTROLLER_JRAFT_INTERNAL_ERROR,
    }
)
"""Refusals that a little later, or at another controller, may be none."""

T = TypeVar("T")

id_option = click.option("-i", "--id", "node_id", required=True, help="Id of the controller, e.g. n3.")
raft_option = click.option(
    "-r", "--raftAddress", "raft", required=True, help="Where the others reach it, host:port."
)
rpc_option = click.option(
    "-p", "--rpcAddress", "rpc", default="", help="Where brokers reach it, if that is another port (jRaft)."
)
wait_option = click.option(
    "--wait", "wait_s", type=click.FloatRange(1), default=60.0, show_default=True, help="Give up after, s."
)


async def members(admin: Admin, controllers: str) -> ControllerMembers:
    """The members as the leader knows them; without a leader, as the first that answers does."""
    try:
        address = await admin.leading_controller(controllers)
        answer = await admin.ask(address, wire.GetControllerMembers())
    except (AdminError, NetError):
        answer = await admin.ask_controller(controllers, wire.GetControllerMembers())
    return decode_controller_members(bytes(answer.body))


async def add(admin: Admin, controllers: str, node_id: str, raft: str, rpc: str, wait_s: float) -> None:
    """Until it is a voter. Raises `AdminError`."""
    await _check_newcomer(admin, controllers, node_id, rpc or raft)

    async def step(tell: Header) -> wire.AddControllerReply | None:
        answer = (await _to_leader(admin, controllers, tell)).header
        assert isinstance(answer, wire.AddControllerReply)
        return answer if answer.state == "voter" else None

    await _until(
        lambda: step(wire.AddController(node_id, raft, rpc)),
        wait_s,
        f"{node_id} is a learner and has not caught up: see getControllerMembers, and give the command again",
    )


async def remove(admin: Admin, controllers: str, node_id: str, wait_s: float) -> None:
    """Until it is no member. Raises `AdminError`."""

    async def step() -> bool | None:
        known = await members(admin, controllers)
        if node_id in (each.controller_id for each in known.members):
            await _to_leader(admin, controllers, wire.RemoveController(node_id))
            return None  # looks again: what was decided is seen by whoever leads
        return True if known.leader_id is not None and known.settled else None

    await _until(step, wait_s, f"whether {node_id} is removed is not known: give the command again")


async def transfer(admin: Admin, controllers: str, node_id: str, wait_s: float) -> None:
    """Until it leads. Raises `AdminError`."""

    async def step() -> bool | None:
        if (await members(admin, controllers)).leader_id == node_id:
            return True
        await _to_leader(admin, controllers, wire.TransferControllerLeadership(node_id))
        return None

    await _until(step, wait_s, f"{node_id} does not lead: see getControllerMembers")


async def _to_leader(admin: Admin, controllers: str, header: Header) -> Response:
    return await admin.ask(await admin.leading_controller(controllers), header)


async def _check_newcomer(admin: Admin, controllers: str, node_id: str, address: str) -> None:
    """Whether what listens there is that controller, of this group, and waits to be added to it."""
    group = await members(admin, controllers)
    try:
        answer = await admin.ask(address, wire.GetControllerMembers())
    except NetError as error:
        raise AdminError(
            f"{error}; start {node_id} first, with an empty directory and controllerJoinRunningGroup=true"
        ) from None
    found = decode_controller_members(bytes(answer.body))
    if (found.group, found.answered_by) != (group.group, node_id):
        raise AdminError(
            f"at {address} is controller {found.answered_by} of group {found.group}, not {node_id} of "
            f"{group.group}"
        )
    if node_id in (each.controller_id for each in group.members):
        return
    if found.standing == "voter":
        raise AdminError(
            f"{node_id} was started to found a group of its own: start it with an empty directory and "
            f"controllerJoinRunningGroup=true"
        )
    if found.standing == "removed":
        raise AdminError(
            f"{node_id} was removed from the group, or was not started to join it: start it with an empty "
            f"directory, an id that no member ever had and controllerJoinRunningGroup=true"
        )


async def _until(step: Callable[[], Awaitable[T | None]], wait_s: float, otherwise: str) -> T:
    """Repeats `step` until it returns something; raises `AdminError` when the time is up."""
    loop = asyncio.get_running_loop()
    deadline, last = loop.time() + wait_s, ""
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
        except (NetError, AdminError) as error:  # between two leaders nobody knows one
            last = str(error)
        if loop.time() > deadline:
            raise AdminError(otherwise + (f" ({last})" if last else ""))
        await asyncio.sleep(PAUSE_S)
