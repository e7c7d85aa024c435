"""One run: a cluster on a network, the scenarios one after the other under load, the checks after each."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import reduce

from batonmq import Admin
from batonmq.demo.cluster import LocalCluster, Program
from batonmq.net.errors import NetError
from batonmq.protocol.errors import MQError
from tests.chaos.check import Kind, Send, Verdict, check, longest_gap_s
from tests.chaos.faults import Strike, View, both, strike
from tests.chaos.load import QUEUES, Load, now_us, read_topic
from tests.chaos.network import Network
from tests.chaos.observe import Observer
from tests.chaos.scenarios import Round, Scenario
from tests.chaos.stores import compare_replicas, complaints, read_topics

WARM_S = 2.0
"""Load before the first fault."""
SETTLE_S = 1.5
"""Load between the group's recovery and the next fault."""
WHOLE_TIMEOUT_S = 60.0
READY_TIMEOUT_S = 90.0
BUCKET_S = 0.1
"""Of the acknowledgements in the timeline."""

Say = Callable[[str], None]


@dataclass(slots=True)
class RoundResult:
    """Times in s since the load began."""

    fault: str
    struck_s: float
    healed_s: float
    wall_ms: int
    """When it struck, ms since the epoch: to find it in the programs' logs."""
    whole_s: float | None = None
    """From healing until the SyncStateSet had all replicas for good; None: never."""
    longest_gap_s: float = 0.0
    """Longest time without an acknowledged send from the fault to the next one."""


@dataclass(slots=True)
class Result:
    """What came of one scenario."""

    system: str
    replicas: int
    scenario: str
    seed: int
    quick: bool
    rounds: list[RoundResult] = field(default_factory=list)
    sent: int = 0
    acked: int = 0
    stored: int = 0
    duplicated: int = 0
    redelivered: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    """Sends without acknowledgement, by reason."""
    violations: dict[str, int] = field(default_factory=dict)
    examples: dict[str, list[str]] = field(default_factory=dict)
    acks: list[int] = field(default_factory=list)
    """Acknowledgements in each `BUCKET_S` since the load began."""

    @property
    def ok(self) -> bool:
        return not self.violations

    @property
    def longest_gap_s(self) -> float:
        return max((entry.longest_gap_s for entry in self.rounds), default=0.0)

    @property
    def whole_s(self) -> float | None:
        times = [entry.whole_s for entry in self.rounds]
        known = [value for value in times if value is not None]
        return max(known, default=0.0) if len(known) == len(times) else None

    def as_json(self) -> dict[str, object]:
        return asdict(self)

    def judged(self, verdict: Verdict) -> None:
        """Take over what a check found."""
        self.violations = {kind.name.lower(): count for kind, count in verdict.counts.items()}
        self.examples = {kind.name.lower(): texts for kind, texts in verdict.examples.items()}


class Run:
    """A started cluster and what was sent to it, scenario after scenario."""

    def __init__(
        self,
        system: str,
        cluster: LocalCluster,
        network: Network,
        seed: int,
        *,
        quick: bool,
        say: Say,
    ) -> None:
        self._system = system
        self._cluster = cluster
        self._network = network
        self._seed = seed
        self._quick = quick
        self._say = say
        self._by_host: dict[str, Program] = {program.name: program for program in cluster.programs}
        self._observer = Observer(cluster)
        self._sent: dict[str, list[Send]] = {}

    async def start(self) -> None:
        """Start the cluster; all replicas are in sync then. Raises `ProcessFailed`, `TimeoutError`."""
        self._say("starting")
        await asyncio.to_thread(self._cluster.start)
        self._observer.start()
        if await self._observer.whole_since(time.monotonic(), READY_TIMEOUT_S) is None:
            raise TimeoutError(f"no group in sync within {READY_TIMEOUT_S:g} s: {self._observer.state}")

    async def stop(self) -> None:
        """Kill everything."""
        await self._observer.stop()
        for program in self._cluster.programs:
            program.kill()

    async def finish(self) -> Verdict:
        """Stop the cluster in good order; then every store must hold all that was ever acknowledged."""
        await self._observer.stop()
        await asyncio.to_thread(self._cluster.stop)
        roots = [self._cluster.store_path(i) for i in range(self._cluster.replicas)]
        verdict = Verdict()
        for root in roots:
            topics = await asyncio.to_thread(read_topics, root)
            for topic, sends in self._sent.items():
                verdict.merge(check(sends, topics.get(topic, [])))
            for text in await asyncio.to_thread(complaints, root):
                verdict.violated(Kind.CORRUPT, text)
        return verdict

    async def scenario(self, scenario: Scenario) -> Result:
        """Let one scenario happen and check what it did. The cluster must be whole."""
        rng = random.Random(f"{self._seed}/{scenario.name}")
        result = Result(self._system, self._cluster.replicas, scenario.name, self._seed, self._quick)
        topic = f"Chaos-{scenario.name}"
        rounds = list(scenario.rounds)
        if scenario.shuffled:
            rng.shuffle(rounds)
        await self._create_topic(topic)
        load = Load(topic, self._cluster.namesrv_address)
        try:
            await load.start()
            began_us = now_us()
            await asyncio.sleep(WARM_S)
            hold_s = scenario.quick_hold_s if self._quick else scenario.hold_s
            for number, faults in enumerate(rounds, 1):
                self._say(f"{scenario.title}, round {number} of {len(rounds)}")
                entry = await self._round(faults, hold_s, rng, began_us)
                result.rounds.append(entry)
                if entry.whole_s is None:
                    break
            self._say(f"{scenario.title}: checking")
            ended_us = now_us()
            await load.finish()
        except BaseException:
            await load.abandon()
            raise
        self._sent[topic] = load.sends
        await self._judge(result, load, began_us, ended_us)
        return result

    async def _round(self, faults: Round, hold_s: float, rng: random.Random, began_us: int) -> RoundResult:
        view = await self._view()
        blow = reduce(both, (strike(fault, view, rng) for fault in faults))
        self._say(blow.text)
        wall_ms = time.time_ns() // 1_000_000
        struck_us = now_us()
        await self._strike(blow)
        await asyncio.sleep(hold_s)
        healed_us, healed = now_us(), time.monotonic()
        await self._heal(blow)
        whole = await self._observer.whole_since(healed, WHOLE_TIMEOUT_S)
        await asyncio.sleep(SETTLE_S)
        return RoundResult(
            blow.text,
            (struck_us - began_us) / 1e6,
            (healed_us - began_us) / 1e6,
            wall_ms,
            None if whole is None else whole - healed,
        )

    async def _view(self) -> View:
        state, leader = self._observer.state, await self._observer.leader()
        master = None
        if state is not None and state.master_address is not None:
            master = self._cluster.broker_at(state.master_address).name
        return View(
            master,
            tuple(program.name for program in self._cluster.brokers),
            leader,
            tuple(program.name for program in self._cluster.controller_programs),
            tuple(program.name for program in self._cluster.namesrvs),
        )

    async def _strike(self, blow: Strike) -> None:
        if blow.cut or blow.loss:
            await asyncio.to_thread(self._network.apply, blow.cut, blow.loss)
        for name in blow.hang:
            self._by_host[name].signal(signal.SIGSTOP)
        for name in blow.kill:
            self._by_host[name].kill()

    async def _heal(self, blow: Strike) -> None:
        """Undo it; killed programs are being started when this returns soon after."""
        if blow.cut or blow.loss:
            await asyncio.to_thread(self._network.apply, frozenset(), {})
        for name in blow.hang:
            self._by_host[name].signal(signal.SIGCONT)
        await asyncio.gather(*(asyncio.to_thread(self._by_host[name].start) for name in blow.kill))

    async def _create_topic(self, topic: str) -> None:
        """Create `topic`, and again until a master is there to do so."""
        deadline = time.monotonic() + READY_TIMEOUT_S
        async with Admin(self._cluster.namesrv_address) as admin:
            while True:
                try:
                    await admin.create_topic(topic, QUEUES)
                    break
                except (NetError, MQError, LookupError):
                    if time.monotonic() > deadline:
                        raise
                    await asyncio.sleep(0.2)

    async def _judge(self, result: Result, load: Load, began_us: int, ended_us: int) -> None:
        acks = sorted(send.acked_us for send in load.sends if send.acked_us is not None)
        starts = [began_us + int(entry.struck_s * 1e6) for entry in result.rounds]
        for entry, start, end in zip(result.rounds, starts, [*starts[1:], ended_us], strict=True):
            entry.longest_gap_s = longest_gap_s(acks, start, end)
        log = await read_topic(load.topic, self._cluster.namesrv_address)
        verdict = check(load.sends, log, load.deliveries)
        roots = [self._cluster.store_path(i) for i in range(self._cluster.replicas)]
        difference = await asyncio.to_thread(compare_replicas, roots)
        if difference is not None:
            verdict.violated(Kind.REPLICAS_DIFFER, difference)
        if result.whole_s is None:
            verdict.violated(Kind.UNHEALED, f"not within {WHOLE_TIMEOUT_S:g} s: {self._observer.state}")
        result.judged(verdict)
        result.sent, result.acked, result.stored = verdict.sent, verdict.acked, verdict.stored
        result.duplicated, result.redelivered = verdict.duplicated, verdict.redelivered
        result.errors = dict(Counter(send.error for send in load.sends if send.acked_us is None))
        buckets = Counter(int((moment - began_us) / 1e6 / BUCKET_S) for moment in acks)
        result.acks = [buckets[i] for i in range(int((ended_us - began_us) / 1e6 / BUCKET_S) + 1)]


async def run_all(run: Run, scenarios: Sequence[Scenario], done: Callable[[Result], None]) -> Verdict:
    """All scenarios on one cluster, each result as it comes; returns the check of the stores at the end.

    Ends early when the group does not become whole again.
    """
    try:
        await run.start()
        for scenario in scenarios:
            result = await run.scenario(scenario)
            done(result)
            if result.whole_s is None:
                break
        return await run.finish()
    finally:
        await run.stop()
