"""The same wire load for every kind of controller: bring-up, AlterSyncStateSet, getReplicaInfo, heartbeats.

Each broker set has two replicas and one request under way; eight connections lead to the leader. Alterations
turn the SyncStateSet from {1} to {1, 2} and back. What a controller refuses is counted apart.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass

import msgspec

from batonmq.protocol.codes import RequestCode
from batonmq.protocol.frame import Command
from benchmarks.controller import wire
from benchmarks.controller.group import Group
from benchmarks.controller.wire import Line, Template
from benchmarks.failover import percentile

CONNECTIONS = 8
BRING_UP_AT_ONCE = 64
ALTER, READ, HEARTBEAT, BRING_UP = "alter", "read", "heartbeat", "bring-up"


@dataclass(frozen=True)
class Rate:
    """What one phase came to; `processor_percent` of one core, for each controller, the leader's first."""

    per_s: float
    p50_ms: float
    p99_ms: float
    refused: dict[int, int]
    processor_percent: tuple[float, ...]

    def as_json(self) -> dict[str, object]:
        return asdict(self)


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
        self._end = time.perf_counter() + seconds
        self._open = 0
        self._over = asyncio.Event()
        self.latencies: list[float] = []
        self.refused: Counter[int] = Counter()

    def run(self, line: Line, next_request: Callable[[Command | None], Template]) -> None:
        """Begin one loop."""
        clock = time.perf_counter
        latencies, refused = self.latencies, self.refused
        request, began = next_request(None), clock()

        def answered(answer: Command) -> None:
            nonlocal request, began
            now = clock()
            if request.code == self._code:
                if answer.code == 0:
                    latencies.append(now - began)
                else:
                    refused[answer.code] += 1
            if now >= self._end:
                self._open -= 1
                if not self._open:
                    self._over.set()
                return
            request, began = next_request(answer), clock()
            line.ask(request, answered)

        self._open += 1
        line.ask(request, answered)

    async def over(self) -> None:
        await self._over.wait()


class Load:
    """`groups` broker sets at a running group of controllers."""

    def __init__(self, group: Group, groups: int) -> None:
        self._group = group
        self._leader = ""
        self._lines: list[Line] = []
        stamp = f"{time.time():.0f}"
        self.sets = [Set(f"{stamp}-{number}") for number in range(groups)]

    async def connect(self) -> None:
        self._leader = await self._group.leader()
        self._lines = [await Line.to(self._leader) for _ in range(CONNECTIONS)]

    def line(self, number: int) -> Line:
        return self._lines[number % len(self._lines)]

    def close(self) -> None:
        for line in self._lines:
            line.close()

    async def bring_up(self) -> Rate:
        """Two ids, two registrations, two heartbeats and an election for each set, 64 sets at once."""
        gate = asyncio.Semaphore(BRING_UP_AT_ONCE)
        took: list[float] = []
        refused: Counter[int] = Counter()

        async def one(number: int, each: Set) -> None:
            async with gate:
                line, began = self.line(number), time.perf_counter()
                for broker_id in (1, 2):
                    for request in (
                        wire.apply_id(each.name, broker_id, each.address),
                        wire.register(each.name, broker_id, each.address),
                        wire.heartbeat(each.name, broker_id, each.address),
                    ):
                        answer = await line.call(request)
                        if answer.code:
                            refused[answer.code] += 1
                answer = await line.call(wire.elect(each.name, 1))
                while answer.code:  # Java's DLedger controller takes a heartbeat in only a moment later
                    refused[answer.code] += 1
                    await asyncio.sleep(0.1)
                    answer = await line.call(wire.elect(each.name, 1))
                each.master = int(answer.ext["masterBrokerId"])
                each.master_epoch = int(answer.ext["masterEpoch"])
                each.epoch = int(answer.ext["syncStateSetEpoch"])
                took.append(time.perf_counter() - began)

        async def everything() -> None:
            await asyncio.gather(*(one(number, each) for number, each in enumerate(self.sets)))

        return await self._measured(took, refused, everything)

    async def alter(self, seconds: float) -> Rate:
        code = RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET
        return await self._phase(Phase(code, seconds), lambda each: each.next_alteration)

    async def read(self, seconds: float) -> Rate:
        code = RequestCode.CONTROLLER_GET_REPLICA_INFO
        return await self._phase(Phase(code, seconds), lambda each: lambda _: each.read)

    async def heartbeat(self, seconds: float) -> Rate:
        code = RequestCode.BROKER_HEARTBEAT
        return await self._phase(Phase(code, seconds), lambda each: lambda _: each.beat)

    async def _phase(
        self, phase: Phase, loop_of: Callable[[Set], Callable[[Command | None], Template]]
    ) -> Rate:
        async def everything() -> None:
            for number, each in enumerate(self.sets):
                phase.run(self.line(number), loop_of(each))
            await phase.over()

        return await self._measured(phase.latencies, phase.refused, everything)

    async def _measured(
        self, latencies: list[float], refused: Counter[int], work: Callable[[], Awaitable[None]]
    ) -> Rate:
        before, began = self._group.processor_s(), time.perf_counter()
        await work()
        took, after = time.perf_counter() - began, self._group.processor_s()
        order = sorted(after, key=lambda address: address != self._leader)
        return Rate(
            len(latencies) / took,
            percentile(latencies, 50) * 1000,
            percentile(latencies, 99) * 1000,
            dict(refused),
            tuple((after[address] - before[address]) / took * 100 for address in order),
        )


async def measure(group: Group, groups: int, seconds: float, say: Callable[[str], None]) -> dict[str, Rate]:
    """All phases, one after the other."""
    load = Load(group, groups)
    await load.connect()
    try:
        rates = {}
        for name, phase in (
            (BRING_UP, load.bring_up),
            (ALTER, lambda: load.alter(seconds)),
            (READ, lambda: load.read(seconds)),
            (HEARTBEAT, lambda: load.heartbeat(seconds)),
        ):
            say(name)
            rates[name] = await phase()
        return rates
    finally:
        load.close()
