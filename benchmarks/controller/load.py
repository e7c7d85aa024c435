"""The same wire load for every kind of controller: bring-up, AlterSyncStateSet, getReplicaInfo, heartbeats.

Each broker set has two replicas and one request under way; eight connections lead to the leader. Alterations
turn the SyncStateSet from {1} to {1, 2} and back. What a controller refuses is counted apart. RocketMQ's
brokers wait for no answer to a heartbeat, so heartbeats are measured twice: one by one, and many oneway
before each that is answered, which BatonMQ does only when it has applied all that came before.

All kinds run at the same time and are measured in turn, phase by phase, round by round: the speed of a shared
machine changes within minutes, and a JVM is compiled after the first round, which does not count.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace

import msgspec
import uvloop

from batonmq.protocol.codes import RequestCode
from batonmq.protocol.frame import Command
from benchmarks.controller import wire
from benchmarks.controller.group import Group, running
from benchmarks.controller.wire import Line, Template
from benchmarks.failover import percentile

CONNECTIONS = 8
BRING_UP_AT_ONCE = 64
ALTER, READ, HEARTBEAT, ONEWAY, BRING_UP = "alter", "read", "heartbeat", "oneway", "bring-up"
PHASES = (BRING_UP, ALTER, READ, HEARTBEAT, ONEWAY)
ONEWAY_RUN = 16
"""Heartbeats without an answer before each that has one."""
REPEAT_S = 0.02
REFUSED_LIMIT_S = 30.0
LATE_LIMIT_S = 5.0
"""How long after its end a phase waits for the answers still under way."""


class LoadFailed(RuntimeError):
    """A controller does not do what the load needs to go on."""


@dataclass(frozen=True)
class Rate:
    """What one phase came to; `processor_percent` of one core, for each controller, the leader's first."""

    per_s: float
    p50_ms: float
    p99_ms: float
    refused: dict[int, int]
    processor_percent: tuple[float, ...]
    unanswered: int = 0
    """Requests that had no answer `LATE_LIMIT_S` after the end of the phase."""


@dataclass(frozen=True)
class Rounds:
    """One phase of one kind: medians over the rounds, and each round."""

    rounds: list[Rate] = field(default_factory=list)

    def as_json(self) -> dict[str, object]:
        refused: Counter[int] = Counter()
        for each in self.rounds:
            refused.update(each.refused)
        percents = zip(*(each.processor_percent for each in self.rounds), strict=True)
        return {
            "per_s": self.median,
            "p50_ms": statistics.median(each.p50_ms for each in self.rounds),
            "p99_ms": statistics.median(each.p99_ms for each in self.rounds),
            "refused": dict(refused),
            "processor_percent": [statistics.median(each) for each in percents],
            "rounds": [asdict(each) for each in self.rounds],
        }

    @property
    def median(self) -> float:
        return statistics.median(each.per_s for each in self.rounds)


class Set:
    """What the load knows of one broker set."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.address = "127.0.0.1:10911"
        self.master = 1
        self.master_epoch = 1
        self.epoch = 1
        self._full = False
        self._looks = False
        self.beat = wire.heartbeat(name, 1, self.address)
        self.oneway = wire.heartbeat(name, 1, self.address, oneway=True)
        self.read = wire.replica_info(name)

    def next_alteration(self, answer: Command | None) -> Template:
        """What to ask after `answer`; after a refusal, where the set stands."""
        if answer is not None and self._looks:
            self._take_over(answer)
        elif answer is not None and answer.code == 0:
            self.epoch = int(answer.ext["newSyncStateSetEpoch"])
            self._full = not self._full
        self._looks = answer is not None and answer.code != 0
        if self._looks:
            return self.read
        members = [self.master] if self._full else [1, 2]
        return wire.alter(self.name, self.master, self.master_epoch, members, self.epoch)

    def _take_over(self, answer: Command) -> None:
        if answer.code == 0:
            body = msgspec.json.decode(answer.body)
            self.epoch, self._full = body["syncStateSetEpoch"], len(body["syncStateSet"]) == 2
            self.master_epoch = int(answer.ext.get("masterEpoch") or self.master_epoch)
            self.master = int(answer.ext.get("masterBrokerId") or self.master)


class Phase:
    """Closed loops, one a broker set, for `seconds`; requests of `code` are what is measured."""

    def __init__(self, code: RequestCode, seconds: float) -> None:
        self._code = int(code)
        self.seconds = seconds
        self._end = time.perf_counter() + seconds
        self.open = 0
        self._over = asyncio.Event()
        self.latencies: list[float] = []
        self.refused: Counter[int] = Counter()

    def run(
        self,
        line: Line,
        next_request: Callable[[Command | None], Template],
        ahead: Template | None = None,
    ) -> None:
        """Begin one loop; `ONEWAY_RUN` times `ahead` goes before each request."""

        def ask(request: Template) -> None:
            if ahead is not None:
                frame = ahead.frame(0)
                line.send(frame * ONEWAY_RUN)
            line.ask(request, answered)

        clock = time.perf_counter
        latencies, refused = self.latencies, self.refused
        request, began = next_request(None), clock()

        def answered(answer: Command) -> None:
            nonlocal request, began
            now = clock()
            if now >= self._end:
                self.open -= 1
                if not self.open:
                    self._over.set()
                return
            if request.code == self._code:
                if answer.code == 0:
                    latencies.append(now - began)
                else:
                    refused[answer.code] += 1
            request, began = next_request(answer), clock()
            ask(request)

        self.open += 1
        ask(request)

    async def over(self) -> None:
        """Until the last loop ended, or is given up: what is still `open` then had no answer."""
        try:
            async with asyncio.timeout(self._end - time.perf_counter() + LATE_LIMIT_S):
                await self._over.wait()
        except TimeoutError:
            if not self.latencies:
                raise LoadFailed(f"none of {self.open} requests of code {self._code} was answered") from None


class Load:
    """`size` broker sets at a running group of controllers; each `bring_up` makes as many new ones."""

    def __init__(self, group: Group, size: int) -> None:
        self._group = group
        self._size = size
        self._leader = ""
        self._lines: list[Line] = []
        self._stamp = f"{time.time():.0f}"
        self._made = 0
        self.sets: list[Set] = []
        """Those of the last `bring_up`; the earlier ones keep their connections, and so their masters."""

    async def connect(self) -> None:
        """Connect to the leader and wait until it decides: Java's DLedger leads a moment earlier."""
        self._leader = await self._group.leader()
        self._lines = [await Line.to(self._leader) for _ in range(CONNECTIONS)]
        await self._bring_up(self.line(0), self._new_set(), Counter())

    def line(self, number: int) -> Line:
        return self._lines[number % len(self._lines)]

    def close(self) -> None:
        for line in self._lines:
            line.close()

    def _new_set(self) -> Set:
        self._made += 1
        return Set(f"{self._stamp}-{self._made}")

    async def bring_up(self) -> Rate:
        """Two ids, two registrations, two heartbeats and an election for each set, 64 sets at once."""
        self.sets = [self._new_set() for _ in range(self._size)]
        gate = asyncio.Semaphore(BRING_UP_AT_ONCE)
        took: list[float] = []
        refused: Counter[int] = Counter()

        async def one(number: int, each: Set) -> None:
            async with gate:
                began = time.perf_counter()
                await self._bring_up(self.line(number), each, refused)
                took.append(time.perf_counter() - began)

        async def everything() -> None:
            await asyncio.gather(*(one(number, each) for number, each in enumerate(self.sets)))

        return await self._measured(took, refused, everything)

    async def _bring_up(self, line: Line, each: Set, refused: Counter[int]) -> None:
        for broker_id in (1, 2):
            for request in (
                wire.apply_id(each.name, broker_id, each.address),
                wire.register(each.name, broker_id, each.address),
                wire.heartbeat(each.name, broker_id, each.address),
            ):
                await _decided(line, request, refused)
        # Java's DLedger controller takes a heartbeat in only a moment later, and refuses until then.
        answer = await _decided(line, wire.elect(each.name, 1), refused)
        each.master = int(answer.ext["masterBrokerId"])
        each.master_epoch = int(answer.ext["masterEpoch"])
        each.epoch = int(answer.ext["syncStateSetEpoch"])

    async def phase(self, name: str, seconds: float) -> Rate:
        """One of `PHASES`."""
        if name == BRING_UP:
            return await self.bring_up()
        code, loop_of = LOOPS[name]
        oneway = name == ONEWAY
        phase = Phase(code, seconds)

        async def everything() -> None:
            for number, each in enumerate(self.sets):
                phase.run(self.line(number), loop_of(each), each.oneway if oneway else None)
            await phase.over()

        rate = await self._measured(phase.latencies, phase.refused, everything, phase)
        return replace(rate, per_s=rate.per_s * (ONEWAY_RUN + 1)) if oneway else rate

    async def _measured(
        self,
        latencies: list[float],
        refused: Counter[int],
        work: Callable[[], Awaitable[None]],
        phase: Phase | None = None,
    ) -> Rate:
        before, began = self._group.processor_s(), time.perf_counter()
        await work()
        took, after = time.perf_counter() - began, self._group.processor_s()
        order = sorted(after, key=lambda address: address != self._leader)
        return Rate(
            len(latencies) / (took if phase is None else phase.seconds),
            percentile(latencies, 50) * 1000,
            percentile(latencies, 99) * 1000,
            dict(refused),
            tuple((after[address] - before[address]) / took * 100 for address in order),
            0 if phase is None else phase.open,
        )


LOOPS: dict[str, tuple[RequestCode, Callable[[Set], Callable[[Command | None], Template]]]] = {
    ALTER: (RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET, lambda each: each.next_alteration),
    READ: (RequestCode.CONTROLLER_GET_REPLICA_INFO, lambda each: lambda _: each.read),
    HEARTBEAT: (RequestCode.BROKER_HEARTBEAT, lambda each: lambda _: each.beat),
    ONEWAY: (RequestCode.BROKER_HEARTBEAT, lambda each: lambda _: each.beat),
}
"""What is counted in a phase, and what a broker set asks after each answer."""


async def _decided(line: Line, request: Template, refused: Counter[int]) -> Command:
    """The answer to `request`, which is repeated while it is refused. Raises `LoadFailed`."""
    deadline = time.monotonic() + REFUSED_LIMIT_S
    while True:
        answer = await line.call(request)
        if answer.code == 0:
            return answer
        refused[answer.code] += 1
        if time.monotonic() > deadline:
            raise LoadFailed(
                f"request {request.code} refused for {REFUSED_LIMIT_S:.0f} s: {answer.code} {answer.remark}"
            )
        await asyncio.sleep(REPEAT_S)


async def _in_turn(
    groups: Sequence[Group], sets: int, seconds: float, rounds: int, say: Callable[[str], None]
) -> dict[str, dict[str, Rounds]]:
    loads = {group.kind: Load(group, sets) for group in groups}
    found = {kind: {name: Rounds() for name in PHASES} for kind in loads}
    try:
        for load in loads.values():
            await load.connect()
        for number in range(rounds + 1):
            for name in PHASES:
                for kind, load in loads.items():
                    rate = await load.phase(name, seconds)
                    count = f"round {number} of {rounds}" if number else "warming up"
                    say(f"{count}, {name}, {kind}: {rate.per_s:,.0f}/s")
                    if number:
                        found[kind][name].rounds.append(rate)
    finally:
        for load in loads.values():
            load.close()
    return found


def measure(
    kinds: Sequence[str], sets: int, seconds: float, rounds: int, say: Callable[[str], None]
) -> dict[str, dict[str, Rounds]]:
    """All phases, each `rounds` times after one that does not count, by kind. Raises `LoadFailed`."""
    with ExitStack() as stack:
        groups = [stack.enter_context(running(kind)) for kind in kinds]
        return uvloop.run(_in_turn(groups, sets, seconds, rounds, say))
