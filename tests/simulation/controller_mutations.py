"""Does the history checker notice? ``python -m tests.simulation.controller_mutations`` takes guards out of
controllers and of the Raft below, one at a time, and counts the seeds that then fail (`mutation.py`)."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

from batonmq.controller import events, proposer
from batonmq.controller.machine import ControllerMachine
from batonmq.controller.proposer import NOT_LEADER, Proposer
from batonmq.controller.service import ControllerService
from batonmq.raft.node import RaftNode
from batonmq.raft.state import Role
from tests.simulation.controller_group import Shape
from tests.simulation.controller_sim import ANY, run
from tests.simulation.mutation import Mutation, Patch, counting
from tests.simulation.raft_mutations import MUTATIONS as RAFT

FOLLOWERS = Shape(follower_read=True)
UNLEASED = Shape(lease_read=False, at_reigns=True)
LEASES = Shape(lease_read=True, at_reigns=True)


def _stale_read() -> list[Patch]:
    async def read_index(self: RaftNode) -> None:
        return None

    return [(RaftNode, "read_index", read_index)]


def _stale_follower_read() -> list[Patch]:
    original = RaftNode.read_index

    async def read_index(self: RaftNode) -> None:
        if self.core.role is Role.LEADER:
            await original(self)

    return [(RaftNode, "read_index", read_index)]


def _lost_write() -> list[Patch]:
    """Every seventh alteration is acknowledged and never reaches the log."""
    start, submit, count = ControllerService.start, Proposer.submit, itertools.count(1)
    machines: dict[Proposer, ControllerMachine] = {}

    async def starting(self: ControllerService) -> None:
        await start(self)
        machines[self.proposer] = self.machine

    def submitting(self: Proposer, event: Any, callback: Any = None, *, urgent: bool = False) -> None:
        if isinstance(event, events.AlterSyncStateSet) and next(count) % 7 == 0:
            machine = ControllerMachine()
            machine.restore(machines[self].snapshot())
            callback(machine.apply(1, events.encode(machine.now_ms, (event,)))[0])
        else:
            submit(self, event, callback, urgent=urgent)

    return [(Proposer, "submit", submitting), (ControllerService, "start", starting)]


def _forgotten_ids() -> list[Patch]:
    original = ControllerMachine.snapshot

    def snapshot(self: ControllerMachine) -> bytes:
        before = self.broker_sets
        self.broker_sets = {name: each for name, each in before.items() if not name.startswith("ids")}
        try:
            return original(self)
        finally:
            self.broker_sets = before

    return [(ControllerMachine, "snapshot", snapshot)]


def _uncertain_is_refused() -> list[Patch]:
    return [(proposer, "_failure", lambda why: NOT_LEADER)]


def _nothing() -> list[Patch]:
    return []


def _unfenced_refusal() -> list[Patch]:
    return [(ControllerService, "entry_version", lambda self: events.FENCE_SINCE - 1)]


MUTATIONS: dict[str, Mutation[Shape]] = {
    "stale-read": Mutation("reads wait for no barrier", _stale_read, FOLLOWERS),
    "stale-follower-read": Mutation(
        "followers answer reads without asking the leader", _stale_follower_read, FOLLOWERS
    ),
    "lost-write": Mutation("writes are acknowledged and never done", _lost_write),
    "unfenced-refusal": Mutation("a refusal does not raise the epoch", _unfenced_refusal),
    "forgotten-ids": Mutation("snapshots lack broker sets", _forgotten_ids),
    "uncertain-is-refused": Mutation(
        "a request that may have taken effect is answered as refused", _uncertain_is_refused, UNLEASED
    ),
    "no-drift-bound": Mutation(
        "a lease lasts as long as if all clocks ran alike", _nothing, replace(LEASES, drift_percent=0)
    ),
    "no-fsync": replace(RAFT["no-fsync"], shape=ANY),
    "commit-alone": replace(RAFT["commit-alone"], shape=ANY),
    "read-at-once": replace(RAFT["read-at-once"], shape=UNLEASED),
    **{
        name: replace(RAFT[name], shape=LEASES)
        for name in ("not-sticky", "not-sticky-restart", "lease-in-transfer", "lease-by-the-past")
    },
}


def violation(name: str, seed: int) -> str | None:
    """What the story of ``seed`` says with this guard taken out; None if it does not notice."""
    mutation = MUTATIONS[name]
    return mutation.violation(lambda: run(seed, mutation.shape or ANY))


main = counting(MUTATIONS, violation, seeds=20)

if __name__ == "__main__":
    main()
