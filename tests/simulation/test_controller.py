"""Controllers under faults and wrong clocks, one story a seed: what clients saw is linearizable.

`python -m tests.simulation controller --seeds N` runs any number.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections import Counter

import pytest

from batonmq.controller.machine import ControllerMachine
from batonmq.net.client import RemotingClient
from batonmq.protocol.bodies.controller import SyncStateSetBody, decode_sync_state_set
from batonmq.protocol.headers import controller as wire
from batonmq.protocol.json import encode
from tests.simulation.controller_clients import PROBED, Brokers
from tests.simulation.controller_group import ControllerGroup, DriftingLoop, Shape, endpoint
from tests.simulation.controller_mutations import MUTATIONS, violation
from tests.simulation.controller_sim import run
from tests.simulation.story import play

pytestmark = pytest.mark.simulation

SEEDS = 100
EVER_FAILED: dict[int, str] = {}
"""Seeds that once broke a promise, and what was wrong: they stay for ever."""

WITHIN_SEEDS = {
    "stale-read": 2,
    "stale-follower-read": 2,
    "lost-write": 2,
    "uncertain-is-refused": 6,
    "unfenced-refusal": 4,
    "no-drift-bound": 12,
    "read-at-once": 8,
    "commit-alone": 8,
    "no-fsync": 8,
    "forgotten-ids": 8,
}
"""Mutation -> seeds of which at least one must notice it. The others are held by `test_raft.py`; that seeds
notice them here, too, `python -m tests.simulation.controller_mutations` counts."""


@pytest.mark.parametrize("seed", sorted({*range(SEEDS), *EVER_FAILED}))
def test_what_clients_saw_is_linearizable(seed: int) -> None:
    assert run(seed).counts["operations"]


def test_the_stories_contain_what_they_should() -> None:
    """Guards the simulation itself: a story without faults, changes or doubts would prove nothing."""
    seeds = range(200, 206)
    counts = sum((run(seed).counts for seed in seeds), Counter[str]())
    assert counts["terms"] > 3 * len(seeds)
    assert counts["crashes"] > len(seeds)
    for kind, least in {
        "Alter": 20,
        "Elect": 4,
        "Read": 100,
        "NextId": 5,
        "ApplyId": 3,
        "unknown": 1,
    }.items():
        assert counts[f"{kind} answered"] > least * len(seeds), kind
    assert counts["snapshots_restored"] > len(seeds)


def test_a_seed_tells_the_same_story_in_another_process() -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import logging; logging.disable(50)\n"
            "from tests.simulation.controller_sim import run; print(run(7).trace)",
        ],
        env={**os.environ, "PYTHONHASHSEED": "77"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert run(7).trace == int(done.stdout)


@pytest.mark.parametrize("name", WITHIN_SEEDS)
def test_a_missing_guard_is_noticed(name: str) -> None:
    assert any(violation(name, seed) for seed in range(WITHIN_SEEDS[name])), MUTATIONS[name].what


def test_the_double_alteration_of_seed_001_ends_at_a_and_b() -> None:
    """{A,B}; A asks for {A,B,C} and, while that is still being replicated, for {A,B} again. Whoever decides
    before replication takes the second for no change, and ends at {A,B,C} (RIP-67)."""
    loop = DriftingLoop(1)
    group = ControllerGroup(loop, Shape(controllers=3, clock_rates=(1, 1)))
    a, b, c = 1, 2, 3

    async def alter(client: RemotingClient, address: str, members: tuple[int, ...], epoch: int) -> list[int]:
        body = encode(SyncStateSetBody(members, epoch))
        response = await client.call(address, wire.AlterSyncStateSet(PROBED, a, 1), body)
        return list(decode_sync_state_set(bytes(response.body)).sync_state_set)

    async def ask(address: str) -> None:
        await Brokers([address]).register(address)
        client = RemotingClient()
        assert await alter(client, address, (a, b), 1) == [a, b]
        for node in group.controllers:
            assert node.host is not None
            node.host.disk_s = 0.1
        first = asyncio.ensure_future(alter(client, address, (a, b, c), 2))
        await asyncio.sleep(0.01)
        assert not first.done(), "it should still be on its way to the disks"
        second = asyncio.ensure_future(alter(client, address, (a, b), 3))
        assert await first == [a, b, c]
        assert await second == [a, b]

    async def work() -> None:
        for node in group.controllers:
            group.start(node)
        assert await group.within(20, lambda: any(node.service.leading for node in group.controllers))
        leader = group.leader()
        assert leader is not None
        await group.on(group.client_host, ask(endpoint(leader)))
        assert await group.within(20, group.settled)

    with group.in_force():
        play(loop, 1, group.events, work)
    machines: list[ControllerMachine] = [node.service.machine for node in group.controllers]
    assert [machine.broker_sets[PROBED].sync_state_set for machine in machines] == [(a, b)] * 3
