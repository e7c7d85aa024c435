"""The members of the group of controllers, and changes of them at run time.

The group is founded by what the configurations of its first members say; from then on the Raft log says it,
and this module is what handlers, metadata and admin commands ask. A change is made in single steps by the
leader (`raft`, dissertation chapter 4), each of them safe to repeat: a newcomer first only receives the log
(learner), and votes once it has caught up. So an operator's command that lost its answer, or met a change of
the leader, is simply given again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Final

from batonmq.common.config import ConfigError
from batonmq.controller.config import Topology, check_address
from batonmq.protocol.bodies.controller import ControllerMember, ControllerMembers
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers import controller as wire
from batonmq.raft.errors import (
    MembershipBusy,
    MembershipRefused,
    NodeStopped,
    NotLeader,
    Overloaded,
    RaftError,
    TransferInProgress,
)
from batonmq.raft.messages import Members
from batonmq.raft.node import RaftNode
from batonmq.raft.state import Role

MAX_LAG: Final = 100
"""A learner that is no more entries than this behind becomes a voter."""
VOTER, LEARNER, JOINING, REMOVED = "voter", "learner", "joining", "removed"
"""A controller's place in its group; joining: it waits to be added."""


def founders(topology: Topology) -> Members:
    """The membership before the log says otherwise. One that joins has no vote in it."""
    raft, own = topology.raft_addresses, topology.self_id
    services = {} if topology.shared_port else topology.rpc_addresses
    if not topology.joins:
        return Members(raft, {}, services)
    others = {peer: address for peer, address in raft.items() if peer != own}
    return Members(others, {own: raft[own]}, services)


class Membership:
    """Questions raise nothing; changes raise `MQError`."""

    def __init__(self, topology: Topology, node: RaftNode, timeout_ms: int) -> None:
        self._topology = topology
        self._node = node
        self.timeout_ms = timeout_ms
        self._founders = founders(topology)

    # -- who belongs to it

    @property
    def members(self) -> Members:
        try:
            return self._node.members
        except NodeStopped:  # it has not recovered its log yet
            return self._founders

    @property
    def leader_id(self) -> str | None:
        """The leader, as far as this node knows; None during an election, and until it has recovered."""
        try:
            return self._node.leader_id
        except NodeStopped:
            return None

    def rpc_address(self, node_id: str | None) -> str | None:
        """Where brokers and tools reach a controller."""
        if node_id is None:
            return None
        members = self.members
        if self._topology.shared_port:
            return members.all().get(node_id)
        return members.services.get(node_id) or self._topology.rpc_addresses.get(node_id)

    @property
    def peers_text(self) -> str:
        """The voters as getControllerMetaData shows them."""
        known = ((peer, self.rpc_address(peer)) for peer in self.members.voters)
        return "".join(
            f"{peer}:{address};" if self._topology.shared_port else f"{address};"
            for peer, address in known
            if address is not None
        )

    @property
    def standing(self) -> str:
        """What this controller is to its group, as far as it knows."""
        members, own = self.members, self._topology.self_id
        try:
            core = self._node.core
        except NodeStopped:
            return JOINING if self._topology.joins else VOTER
        if core.removed_at is not None:
            return REMOVED
        if core.membership_index == 0 and self._topology.joins:
            return JOINING
        if own in members.all():
            return VOTER if own in members.voters else LEARNER
        return JOINING if self._topology.joins else REMOVED

    def show(self) -> ControllerMembers:
        """What is known of each; only the leader knows who answers, and how far behind they are."""
        members, leader = self.members, self.leader_id
        core = self._node.core
        leads = core.role is Role.LEADER
        shown = []
        for peer, address in members.all().items():
            role = VOTER if peer in members.voters else LEARNER
            lag = core.replication.lag(peer) if leads else None
            shown.append(
                ControllerMember(
                    peer,
                    address,
                    self.rpc_address(peer) or "",
                    "leader" if peer == leader else role,
                    lag is not None if leads else None,
                    lag,
                )
            )
        return ControllerMembers(
            self._topology.group,
            self._topology.self_id,
            self.standing,
            leader,
            core.term,
            core.commit_index,
            core.membership_index <= core.commit_index,
            shown,
        )

    # -- changes, by the leader

    async def add(self, node_id: str, raft_address: str, rpc_address: str) -> wire.AddControllerReply:
        """One step: a new controller becomes a learner, a learner that caught up a voter; returns which."""
        self._check_newcomer(node_id, raft_address, rpc_address)
        node = self._node
        with self._errors():
            self._require_leader()
            async with asyncio.timeout(self.timeout_ms / 1000):
                if node_id not in self.members.all():
                    await node.changes.add_learner(node_id, raft_address, rpc_address)
                lag = node.core.replication.lag(node_id)
                if node_id in self.members.learners and lag is not None and lag <= MAX_LAG:
                    await node.changes.promote(node_id, max_lag=MAX_LAG)
                    lag = node.core.replication.lag(node_id)
        return wire.AddControllerReply(VOTER if node_id in self.members.voters else LEARNER, lag)

    def _check_newcomer(self, node_id: str, raft_address: str, rpc_address: str) -> None:
        members = self.members
        try:
            check_address("raftAddress", raft_address)
            if rpc_address:
                check_address("rpcAddress", rpc_address)
        except ConfigError as error:
            raise _refused(str(error)) from None
        if not node_id:
            raise _refused("a controller needs an id")
        if self._topology.shared_port:
            if rpc_address not in ("", raft_address):
                raise _refused("these controllers serve brokers on their Raft ports: leave rpcAddress out")
        elif node_id != raft_address:
            raise _refused(f"the id of these controllers is their Raft address, {raft_address}")
        elif not rpc_address:
            raise _refused("these controllers serve brokers on a separate port: name it, rpcAddress")
        known = members.all().get(node_id)
        if known not in (None, raft_address):
            raise _refused(f"{node_id} is a member already, at {known}")
        for peer, address in members.all().items():
            if address == raft_address and peer != node_id:
                raise _refused(f"{raft_address} is the address of {peer}: remove that first")

    async def remove(self, node_id: str) -> None:
        """Takes a controller out. The leader hands over instead of removing itself: ask the next one."""
        with self._errors():
            self._require_leader()
            core = self._node.core
            if node_id not in self.members.all():
                # Perhaps by this very request, whose answer was lost. It is not done until it is committed.
                if core.membership_index > core.commit_index:
                    raise MembershipBusy("a change of the members is under way")
                return
            if node_id == self._topology.self_id and len(self.members.voters) > 1:
                await self.hand_over()
                raise NotLeader(self._node.leader_id)
            async with asyncio.timeout(self.timeout_ms / 1000):
                await self._node.changes.remove(node_id)

    async def transfer(self, node_id: str) -> None:
        """Makes another controller the leader; returns at once if it is."""
        with self._errors():
            self._require_leader()
            if node_id == self._topology.self_id:
                return
            if node_id in self.members.voters and not self._node.core.replication.active([node_id]):
                raise MembershipRefused(f"{node_id} does not answer")
            async with asyncio.timeout(self.timeout_ms / 1000):
                await self._node.changes.transfer_leadership(node_id)

    async def hand_over(self) -> None:
        """To the voter with the most of the log. Raises RaftError, TimeoutError."""
        core = self._node.core
        others = core.replication.active(peer for peer in core.members.voters if peer != core.id)
        best = max(others, key=lambda peer: core.peers[peer].match, default=None)
        if best is None:
            raise MembershipRefused("no other voter answers")
        async with asyncio.timeout(self.timeout_ms / 1000):
            await self._node.changes.transfer_leadership(best)

    def _require_leader(self) -> None:
        if self._node.role is not Role.LEADER:
            raise NotLeader(self._node.leader_id)

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (NotLeader, NodeStopped) as error:
            leader = self.leader_id
            address = self.rpc_address(leader)
            fields: dict[str, str] = {}
            if leader is not None and address is not None and leader != self._topology.self_id:
                fields = leader_fields(leader, address)
            raise MQError(ResponseCode.CONTROLLER_NOT_LEADER, str(error), fields) from error
        except (MembershipBusy, TransferInProgress, Overloaded) as error:
            raise MQError(ResponseCode.SYSTEM_BUSY, str(error)) from error
        except MembershipRefused as error:
            raise _refused(str(error)) from error
        except TimeoutError as error:
            text = str(error) or f"not done within {self.timeout_ms / 1000:g} s; it may yet happen"
            raise MQError(ResponseCode.CONTROLLER_JRAFT_INTERNAL_ERROR, text) from error
        except RaftError as error:
            raise MQError(ResponseCode.CONTROLLER_JRAFT_INTERNAL_ERROR, str(error)) from error


def leader_fields(leader_id: str, address: str) -> dict[str, str]:
    """The fields in which a refusal names the leader, as in the answer to getControllerMetaData."""
    return {"controllerLeaderId": leader_id, "controllerLeaderAddress": address}


def _refused(why: str) -> MQError:
    return MQError(ResponseCode.CONTROLLER_INVALID_REQUEST, why)
