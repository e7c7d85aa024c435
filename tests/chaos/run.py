"""Scenarios on a replica group, one after the other under load, and the checks after each."""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from batonmq import Admin
from batonmq.common.garbage import settle
from batonmq.net.errors import NetError
from batonmq.protocol.errors import MQError
from batonmq.spark.jobs.chaos_results import history_name
from tests.chaos import histories
from tests.chaos.check import Kind, Verdict
from tests.chaos.cluster import places_of, stores_of
from tests.chaos.feature_check import Span
from tests.chaos.feature_loads import LOADS
from tests.chaos.fixed import FixedGroups
from tests.chaos.ground import READY_TIMEOUT_S, WHOLE_TIMEOUT_S, Ground, take_times
from tests.chaos.load import QUEUES, Load, now_us
from tests.chaos.reads import Reads, topic_copied
from tests.chaos.results import Result, RoundResult
from tests.chaos.scenarios import Scenario
from tests.chaos.stores import compare_replicas, complaints, read_topics


class Guest(Protocol):
    """A further client of the cluster, beside the load, for the whole run."""

    async def start(self) -> None:
        """The cluster serves; scenarios have not begun."""

    async def check(self, loads: Sequence[Load]) -> None:
        """All is whole, nothing is sent any more, and the cluster serves for the last time."""

    async def stop(self) -> None:
        """However the run came to its end. Called without `start` and twice, too."""


class GroupRun:
    """What was sent to one cluster, scenario after scenario."""

    def __init__(
        self,
        system: str,
        ground: Ground,
        seed: int,
        *,
        quick: bool,
        load: str = "plain",
        guest: Guest | None = None,
    ) -> None:
        self._system = system
        self._ground = ground
        self._cluster = ground.cluster
        self._seed = seed
        self._quick = quick
        self._load = load
        self._guest = guest
        self._loads: list[Load] = []
        self._places = places_of(self._cluster)
        self._fixed = self._cluster if isinstance(self._cluster, FixedGroups) else None

    async def scenarios(self, scenarios: Iterable[Scenario], done: Callable[[Result], None]) -> Verdict:
        """All scenarios on a new cluster, each result as it comes, until the group does not heal.

        With controllers `scenarios` may be an iterator that decides when the run has lasted long enough.
        Returns what the stores were found to hold at the end.
        """
        try:
            await self._ground.start()
            if self._fixed is not None:
                self._ground.say("topics")
                for scenario in scenarios:
                    await self._create_topic(_topic(scenario))
                for scenario in scenarios:
                    await topic_copied(self._fixed, _topic(scenario))
            if self._guest is not None:
                await self._guest.start()
            for scenario in scenarios:
                result = await self._scenario(scenario)
                done(result)
                if result.whole_s is None:
                    break
            else:
                if self._guest is not None:
                    await self._guest.check(self._loads)
            return await self._finish()
        finally:
            if self._guest is not None:
                await self._guest.stop()
            await self._ground.stop()

    async def _scenario(self, scenario: Scenario) -> Result:
        rng = random.Random(f"{self._seed}/{scenario.name}")
        result = Result(
            self._system,
            self._cluster.replicas,
            scenario.name,
            self._seed,
            self._quick,
            load=self._load,
            groups="controllers" if self._fixed is None else self._fixed.layout,
        )
        result.describe(scenario)
        topic = _topic(scenario)
        if self._fixed is None:
            await self._create_topic(topic)
        load = LOADS[self._load][0](topic, self._cluster.namesrv_address, self._seed)
        load.places = self._places
        reads = Reads(topic, self._cluster.namesrv_address, self._places.names)
        # A search for cycles among all that earlier scenarios left stops the producers for 100 ms.
        settle()
        try:
            await load.start()
            await reads.start()
            began_us = now_us()
            result.rounds = await self._ground.rounds(scenario, rng, began_us, quick=self._quick)
            self._ground.say(f"{scenario.title}: checking")
            ended_us = now_us()
            await load.finish()
        except BaseException:
            await load.abandon()
            raise
        finally:
            await reads.stop()
        self._loads.append(load)
        histories.write(
            self._cluster.directory / history_name(scenario.name),
            load.sends,
            [self._cluster.broker_name] if self._fixed is None else self._fixed.names,
        )
        if self._fixed is not None:
            load.acting = acting_spans(result.rounds, began_us)
        result.take(await self._check(load, healed=result.whole_s is not None))
        for each in result.rounds:
            if each.deposed:
                result.violated(Kind.DEPOSED, f"{each.fault}: {each.deposed}")
        result.errors = dict(Counter(load.reasons))
        take_times(result, load.acks_us, began_us, ended_us, reads.moments_us)
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
        for roots in stores_of(self._cluster):
            difference = await asyncio.to_thread(compare_replicas, roots)
            if difference is not None:
                verdict.violated(Kind.REPLICAS_DIFFER, difference)
        return verdict

    async def _finish(self) -> Verdict:
        """Stop the cluster in good order; then every store must hold all that was ever acknowledged."""
        self._ground.say("checking the stores")
        await self._ground.observer.stop()
        await asyncio.to_thread(self._cluster.stop)
        verdict = Verdict()
        for replicas in zip(*stores_of(self._cluster), strict=True):  # one of each broker set
            parts = [await asyncio.to_thread(read_topics, root, self._places) for root in replicas]
            for load in self._loads:
                verdict.merge(
                    load.check_store([found for part in parts for found in part.get(load.topic, [])])
                )
            for root in replicas:
                for text in await asyncio.to_thread(complaints, root):
                    verdict.violated(Kind.CORRUPT, text)
        return verdict


def acting_spans(rounds: Sequence[RoundResult], began_us: int) -> list[Span]:
    """When slaves may have acted as master: from each fault until all was whole."""
    return [
        Span(
            began_us + int(each.struck_s * 1e6),
            sys.maxsize if each.whole_s is None else began_us + int((each.healed_s + each.whole_s) * 1e6),
        )
        for each in rounds
    ]


def _topic(scenario: Scenario) -> str:
    return f"Chaos-{scenario.name}"
