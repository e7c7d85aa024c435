"""The simulated cluster itself: what its operations leave behind."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine

import pytest

from tests.simulation.cluster import SimCluster
from tests.simulation.loop import SimLoop


def play(loop: SimLoop, cluster: SimCluster, story: Coroutine[None, None, None]) -> None:
    logging.disable(logging.CRITICAL)
    try:
        asyncio.set_event_loop(loop)
        with cluster.world.in_force():
            loop.run_until_complete(story)
    finally:
        logging.disable(logging.NOTSET)
        asyncio.set_event_loop(None)
        loop.dispose()
    assert not loop.failures


@pytest.mark.simulation
def test_a_program_that_is_stopping_when_all_is_repaired_runs_again(tmp_path):
    """Seed 1013: it counted as running, then it stopped, and nobody started it any more."""
    loop = SimLoop(7)
    cluster = SimCluster(loop, tmp_path)

    async def until_whole() -> None:
        async with asyncio.timeout(60):
            while not cluster.whole():
                await asyncio.sleep(0.05)

    async def main() -> None:
        cluster.start_all()
        await until_whole()
        node = cluster.brokers[0]
        cluster.stop(node)
        cluster.heal()
        async with asyncio.timeout(60):
            while node.lives == 1:
                await asyncio.sleep(0.05)
        await until_whole()

    play(loop, cluster, main())


@pytest.mark.simulation
def test_a_controller_that_reads_its_log_does_not_lead(tmp_path):
    """Seed 41316: who looked for the leader met one that knew nothing of itself yet."""
    loop = SimLoop(7)
    cluster = SimCluster(loop, tmp_path)
    seen: list[bool] = []

    async def main() -> None:
        cluster.start_all()
        async with asyncio.timeout(60):
            while not cluster.whole():
                seen.append(any(cluster.leads(controller) for controller in cluster.controllers))
                await asyncio.sleep(0)
                if seen[-1]:
                    return

    play(loop, cluster, main())
    assert seen[-1] and not seen[0]
