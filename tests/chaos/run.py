"""Scenarios on a replica group, one after the other under load, and the checks after each."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from batonmq import Admin
from batonmq.net.errors import NetError
from batonmq.protocol.errors import MQError
from tests.chaos.check import Kind, Verdict
from tests.chaos.feature_loads import LOADS
from tests.chaos.ground import READY_TIMEOUT_S, WHOLE_TIMEOUT_S, Ground, take_times
from tests.chaos.load import QUEUES, Load, now_us
from tests.chaos.results import Result
from tests.chaos.scenarios import Scenario
from tests.chaos.stores import compare_replicas, complaints, read_topics


class GroupRun:
    """What was sent to one cluster, scenario after scenario."""

    def __init__(self, system: str, ground: Ground, seed: int, *, quick: bool, load: str = "plain") -> None:
        self._system = system
        self._ground = ground
        self._cluster = ground.cluster
        self._seed = seed
        self._quick = quick
        self._load = load
        self._loads: list[Load] = []

    async def scenarios(self, scenarios: Sequence[Scenario], done: Callable[[Result], None]) -> Verdict:
        """All scenarios on a fresh cluster, each result as it comes, until the group does not heal.

        Returns what the stores were found to hold at the end.
        """
        try:
            await self._ground.start()
            for scenario in scenarios:
                result = await self._scenario(scenario)
                done(result)
                if result.whole_s is None:
                    break
            return await self._finish()
        finally:
            await self._ground.stop()

    async def _scenario(self, scenario: Scenario) -> Result:
        rng = random.Random(f"{self._seed}/{scenario.name}")
        result = Result(
            self._system, self._cluster.replicas, scenario.name, self._seed, self._quick, load=self._load
        )
        topic = f"Chaos-{scenario.name}"
        await self._create_topic(topic)
        load = LOADS[self._load][0](topic, self._cluster.namesrv_address, self._seed)
        try:
            await load.start()
            began_us = now_us()
            result.rounds = await self._ground.rounds(scenario, rng, began_us, quick=self._quick)
            self._ground.say(f"{scenario.title}: checking")
            ended_us = now_us()
            await load.finish()
        except BaseException:
            await load.abandon()
            raise
        self._loads.append(load)
        result.take(await self._check(load, healed=result.whole_s is not None))
        for each in result.rounds:
            if each.deposed:
                result.violated(Kind.DEPOSED, f"{each.fault}: {each.deposed}")
        result.errors = dict(Counter(load.reasons))
        take_times(result, load.acks_us, began_us, ended_us)
        return result

    async def _create_topic(self, topic: str) -> None:
        """Create `topic`, and again until a master is there to do so."""
        deadline = time.monotonic() + READY_TIMEOUT_S
        async with Admin(self._cluster.namesrv_address) as admin:
            while True:
                try:
                    await admin.create_topic(topic, QUEUES)
                    return
                except (NetError, MQError, LookupError):
                    if time.monotonic() > deadline:
                        raise
                    await asyncio.sleep(0.2)

    async def _check(self, load: Load, *, healed: bool) -> Verdict:
        verdict = await load.check()
        if not healed:
            state = self._ground.observer.state
            verdict.violated(Kind.UNHEALED, f"not within {WHOLE_TIMEOUT_S:g} s: {state}")
            return verdict
        difference = await asyncio.to_thread(compare_replicas, self._roots())
        if difference is not None:
            verdict.violated(Kind.REPLICAS_DIFFER, difference)
        return verdict

    async def _finish(self) -> Verdict:
        """Stop the cluster in good order; then every store must hold all that was ever acknowledged."""
        self._ground.say("checking the stores")
        await self._ground.observer.stop()
        await asyncio.to_thread(self._cluster.stop)
        verdict = Verdict()
        for root in self._roots():
            topics = await asyncio.to_thread(read_topics, root)
            for load in self._loads:
                verdict.merge(load.check_store(topics.get(load.topic, [])))
            for text in await asyncio.to_thread(complaints, root):
                verdict.violated(Kind.CORRUPT, text)
        return verdict

    def _roots(self) -> list[Path]:
        return [self._cluster.store_path(number) for number in range(self._cluster.replicas)]
