"""Changes of the members and of the leader of a running group, for operators (chapter 4, 3.10)."""

from __future__ import annotations

import asyncio
from typing import Protocol

from batonmq.raft.config import RaftConfig
from batonmq.raft.core import RaftCore
from batonmq.raft.errors import MembershipRefused, NotLeader
from batonmq.raft.messages import Members
from batonmq.raft.quorum import majority
from batonmq.raft.state import Role


class ChangingNode(Protocol):
    """What a change needs of the node, which must lead."""

    @property
    def core(self) -> RaftCore: ...
    @property
    def config(self) -> RaftConfig: ...
    def require_running(self) -> None:
        """Raises NodeStopped."""
        ...

    async def commit_members(self, members: Members) -> None:
        """Append the membership; returns once it is applied."""
        ...

    def begin_transfer(self, target: str) -> None: ...


class MembershipChanges:
    """Each method is one safe step, or several; all raise NotLeader, MembershipRefused or NodeStopped."""

    def __init__(self, node: ChangingNode) -> None:
        self._node = node

    async def add_learner(self, node_id: str, address: str, service: str = "") -> None:
        """Let ``node_id`` receive the log without a vote: the first step of adding a voter (4.2.1).

        ``service`` is where it serves others than its peers, if that is another address.
        """
        members = self._node.core.members
        if node_id in members.voters:
            raise MembershipRefused(f"{node_id} is a voter already")
        await self._change(members.with_learner(node_id, address, service))

    async def promote(self, node_id: str, *, max_lag: int = 100, timeout_ms: int = 30_000) -> None:
        """Make a learner a voter once it is within ``max_lag`` entries of the end of the log. Also raises
        TimeoutError."""
        core, config = self._node.core, self._node.config
        if node_id not in core.members.learners:
            raise MembershipRefused(f"{node_id} is not a learner")
        async with asyncio.timeout(timeout_ms / 1000):
            while True:
                if core.role is not Role.LEADER:
                    raise NotLeader(core.leader_id)
                lag = core.replication.lag(node_id)
                if lag is not None and lag <= max_lag:
                    break
                await asyncio.sleep(config.heartbeat_interval_ms / 1000)
        await self._change(core.members.promoted(node_id))

    async def remove(self, node_id: str) -> None:
        """Take ``node_id`` out of the group. A leader that removes itself steps down once committed."""
        members = self._node.core.members
        if node_id not in members.all():
            raise MembershipRefused(f"{node_id} is not a member")
        await self._change(members.without(node_id))

    async def replace(self, old: str, new: str, address: str) -> None:
        """Put ``new`` in the place of ``old``: learner, voter, then remove ``old``."""
        await self.add_learner(new, address)
        await self.promote(new)
        await self.remove(old)

    async def transfer_leadership(self, target: str) -> None:
        """Hand over to ``target``; returns when this node no longer leads.

        Raises NotLeader, MembershipRefused (not a voter), or TimeoutError if it leads on.
        """
        core, config = self._node.core, self._node.config
        self._node.begin_transfer(target)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + 2 * config.election_timeout_ms / 1000
        while core.role is Role.LEADER:
            if core.transfer.target is None or loop.time() > deadline:
                raise TimeoutError(f"{target} did not take over within the election timeout")
            await asyncio.sleep(config.heartbeat_interval_ms / 4000)

    async def _change(self, members: Members) -> None:
        self._node.require_running()
        core = self._node.core
        active = core.replication.active(members.voters)
        if core.role is Role.LEADER and len(active) < majority(len(members.voters)):
            # It could never be committed, nor could anything else, for it is in force from now on.
            raise MembershipRefused(
                f"of the voters {', '.join(members.voters)} only {', '.join(active) or 'none'} would answer: "
                f"no majority"
            )
        await self._node.commit_members(members)
