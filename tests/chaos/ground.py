"""The ground of a run: a started cluster on a network, what breaks and repairs it, and an observer."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import reduce

from batonmq.demo.cluster import LocalCluster, Program
from tests.chaos.busy import BusyLoops
from tests.chaos.check import longest_gap_s
from tests.chaos.faults import Strike, View, both, strike
from tests.chaos.fixed import FixedGroups
from tests.chaos.load import now_us
from tests.chaos.network import Network
from tests.chaos.observe import observer_of
from tests.chaos.results import BUCKET_S, Result, RoundResult
from tests.chaos.scenarios import Round, Scenario

WARM_S = 2.0
"""Load before the first fault."""
SETTLE_S = 1.5
"""Load between recovery and the next fault."""
WHOLE_TIMEOUT_S = 60.0
READY_TIMEOUT_S = 90.0
BOOT_TIMEOUT_S = 120.0
"""Of one program: several Java ones that start at once on a busy machine take a minute."""

Say = Callable[[str], None]


class Ground:
    """One cluster from its start to its end."""

    def __init__(self, cluster: LocalCluster | FixedGroups, network: Network, say: Say) -> None:
        self.cluster = cluster
        self.observer = observer_of(cluster)
        self.say = say
        self._network = network
        self._busy = BusyLoops()
        self._by_host: dict[str, Program] = {program.name: program for program in cluster.programs}

    async def start(self) -> None:
        """Start everything; it is whole then. Raises `ProcessFailed`, `TimeoutError`."""
        self.say("starting")
        await self._boot(*self.cluster.namesrvs, *self.cluster.controller_programs)
        for broker in self.cluster.brokers:
            await self._boot(broker)  # the first one becomes master
        self.observer.start()
        if await self.observer.whole_since(time.monotonic(), READY_TIMEOUT_S) is None:
            raise TimeoutError(f"not whole within {READY_TIMEOUT_S:g} s: {self.observer.state}")

    async def stop(self) -> None:
        """Kill everything."""
        self._busy.stop()
        await self.observer.stop()
        for program in self.cluster.programs:
            program.kill()

    async def rounds(
        self, scenario: Scenario, rng: random.Random, began_us: int, *, quick: bool
    ) -> list[RoundResult]:
        """All rounds of a scenario, until one is not healed; the load goes on meanwhile."""
        rounds = list(scenario.rounds)
        if scenario.shuffled:
            rng.shuffle(rounds)
        hold_s = scenario.hold_s
        if quick:
            rounds, hold_s = rounds[: scenario.quick_rounds], scenario.quick_hold_s
        await asyncio.sleep(WARM_S)
        done: list[RoundResult] = []
        for number, faults in enumerate(rounds, 1):
            self.say(f"{scenario.title}, round {number} of {len(rounds)}")
            done.append(await self._round(faults, hold_s, rng, began_us))
            if done[-1].whole_s is None:
                break
        return done

    async def _round(self, faults: Round, hold_s: float, rng: random.Random, began_us: int) -> RoundResult:
        view = await self._view()
        blow = reduce(both, (strike(fault, view, rng) for fault in faults))
        self.say(blow.text)
        wall_ms, struck_us = time.time_ns() // 1_000_000, now_us()
        await self._strike(blow)
        await asyncio.sleep(hold_s)
        healed_us, healed = now_us(), time.monotonic()
        await self._heal(blow)
        whole = await self.observer.whole_since(healed, WHOLE_TIMEOUT_S)
        await asyncio.sleep(SETTLE_S)
        master = (await self._view()).master
        return RoundResult(
            blow.text,
            (struck_us - began_us) / 1e6,
            (healed_us - began_us) / 1e6,
            wall_ms,
            None if whole is None else whole - healed,
            deposed=f"{view.master} -> {master}" if blow.harms_nobody and master != view.master else "",
        )

    async def _view(self) -> View:
        return View(
            self.observer.master,
            tuple(program.name for program in self.cluster.brokers),
            await self.observer.leader(),
            tuple(program.name for program in self.cluster.controller_programs),
            tuple(program.name for program in self.cluster.namesrvs),
        )

    async def _strike(self, blow: Strike) -> None:
        if blow.cut or blow.loss:
            await asyncio.to_thread(self._network.apply, blow.cut, blow.loss)
        for name in blow.hang:
            self._by_host[name].signal(signal.SIGSTOP)
        for name in blow.kill:
            self._by_host[name].kill()
        self._busy.start(blow.busy)

    async def _heal(self, blow: Strike) -> None:
        """Undo it; programs that were killed serve again when this returns. Raises `ProcessFailed`."""
        self._busy.stop()
        if blow.cut or blow.loss:
            await asyncio.to_thread(self._network.apply, frozenset(), {})
        for name in blow.hang:
            self._by_host[name].signal(signal.SIGCONT)
        await self._boot(*(self._by_host[name] for name in blow.kill))

    async def _boot(self, *programs: Program) -> None:
        """Start programs at the same time and wait until all serve. Raises `ProcessFailed`."""

        def boot(program: Program) -> None:
            already = program.log_path.stat().st_size if program.log_path.exists() else 0
            program.start(wait=False)
            program.start_timeout_s = BOOT_TIMEOUT_S
            program.wait_ready(already)

        await asyncio.gather(*(asyncio.to_thread(boot, program) for program in programs))


def take_times(
    result: Result,
    acks_us: Sequence[int],
    began_us: int,
    ended_us: int,
    reads_us: Sequence[Sequence[int]] = (),
) -> None:
    """Gaps of each round and the timeline, from the moments of all acknowledgements, sorted; and those of the
    reads, which are one list for each broker set."""
    result.load_s = (ended_us - began_us) / 1e6
    starts = [began_us + int(entry.struck_s * 1e6) for entry in result.rounds]
    for entry, start, end in zip(result.rounds, starts, [*starts[1:], ended_us], strict=True):
        entry.longest_gap_s = longest_gap_s(acks_us, start, end)
        if reads_us:
            entry.longest_read_gap_s = max(longest_gap_s(moments, start, end) for moments in reads_us)
    buckets = Counter(int((moment - began_us) / 1e6 / BUCKET_S) for moment in acks_us)
    result.acks = [buckets[number] for number in range(int((ended_us - began_us) / 1e6 / BUCKET_S) + 1)]
