"""A group of controllers alone, on virtual time: the real services, memory disks, clocks that run apart."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import math
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from batonmq.controller import service as controller_service
from batonmq.controller.config import ControllerConfig
from batonmq.controller.effects import Effect
from batonmq.controller.service import ControllerService
from batonmq.raft.config import RaftConfig
from batonmq.raft.node import RaftNode
from batonmq.raft.state import Role
from tests.simulation.cluster import CONTROLLER_PORT, Node, SimClock, SimCluster
from tests.simulation.controller_truth import Truth
from tests.simulation.host import Host, current_host
from tests.simulation.loop import SimLoop
from tests.simulation.memory_disk import MemoryDisk, PowerCut
from tests.simulation.raft_node import DriftingClock
from tests.simulation.worker import LoopWorker

ELECTION_MS = 300
SAVING = ("save", "write_snapshot", "drop_before")
"""Executor work of a Raft node that changes its disk."""


@dataclass(frozen=True)
class Shape:
    """What a story is like; what is None the seed decides."""

    controllers: int | None = None
    lease_read: bool | None = None
    follower_read: bool | None = None
    clock_rates: tuple[float, float] = (0.955, 1.05)
    """Slowest and fastest clock; their ratio is within `drift_percent` of a sound story."""
    drift_percent: int = 10
    """leaseReadClockDriftPercent."""
    faults_s: float = 4.0
    at_reigns: bool | None = None
    """All faults are aimed at the moment in which somebody leads no more and may not know it."""


class DriftingLoop(SimLoop):
    """The clocks of hosts differ in speed: timers and `time` go by it."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.clocks: dict[str, DriftingClock] = {}
        self._stamp = 0.0

    def stamp(self) -> float:
        """The observer's time, never the same twice: who asks after an answer asks later."""
        self._stamp = max(self.now, math.nextafter(self._stamp, math.inf))
        return self._stamp

    def _clock(self) -> DriftingClock | None:
        host = current_host.get()
        return None if host is None else self.clocks.get(host.name)

    def time(self) -> float:
        clock = self._clock()
        return self.now if clock is None else clock.at(self.now)

    def call_at(
        self, when: float, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> Any:
        clock = self._clock()
        when = when if clock is None else clock.when(when)
        return super().call_at(when, callback, *args, context=context)

    def call_later(
        self, delay: float, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> Any:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def outside_at(self, when: float, callback: Callable[..., object], *args: Any) -> None:
        super().call_at(when, callback, *args, context=contextvars.Context())

    def _wake(self, host: Host) -> None:
        """What came in while it was stopped may be seen before its timers: asyncio looks there first."""
        if host.paused_until <= self.now and self.random.random() < 0.5:
            host.held.sort(key=lambda handle: isinstance(handle, asyncio.TimerHandle))
        super()._wake(host)


class HostClock(SimClock):
    """Its monotonic time is that of its host; its wall clock may be far off and jump."""

    def __init__(self, loop: DriftingLoop, name: str, skew_ms: int) -> None:
        super().__init__(loop, skew_ms)
        self._drifting = loop, name

    def monotonic_us(self) -> int:
        loop, name = self._drifting
        return int(loop.clocks[name].at(loop.now) * 1_000_000)


class Chance(random.Random):
    """Of one controller; it spreads election timeouts."""

    hurried = False
    """Each wait is as short as it may be."""

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        return start if self.hurried else super().randrange(start, stop, step)


class NoEvents:
    """In place of events.jsonl."""

    def write(self, time_ms: int, node_id: str, effects: Iterable[Effect]) -> None: ...
    async def close(self) -> None: ...


class ControllerGroup(SimCluster):
    """What can happen to controllers is what can happen to all programs; disks and clocks are others."""

    loop: DriftingLoop

    def __init__(self, loop: DriftingLoop, shape: Shape) -> None:
        count = loop.random.choice((3, 5)) if shape.controllers is None else shape.controllers
        super().__init__(loop, Path(), replicas=0, controllers=count)
        self.shape, rng = shape, self.random
        lease, follower, at_reigns = rng.random() < 0.45, rng.random() < 0.6, rng.random() < 0.35
        self.lease_read = lease if shape.lease_read is None else shape.lease_read
        self.follower_read = follower if shape.follower_read is None else shape.follower_read
        self.at_reigns = at_reigns if shape.at_reigns is None else shape.at_reigns
        # The shorter one ends before a client's patience, and before a leader that is cut off gives up.
        self._request_timeout_ms = rng.choice((250, 1_500))
        self.max_lag = rng.choice((0, 3, 1_000))
        self._raft_config = functools.partial(
            RaftConfig,
            snapshot_entries=rng.choice((10, 25, 60)),
            trailing_entries=rng.choice((0, 0, 5, 5_000)),
            snapshot_chunk_bytes=rng.choice((300, 1 << 20)),
            segment_bytes=rng.choice((2_000, 1 << 20)),
            read_timeout_ms=1_000,
        )
        self.truth = Truth(loop.stamp)
        self.chances: dict[str, Chance] = {}
        self.wall_clocks: dict[str, HostClock] = {}
        self.disks: dict[str, MemoryDisk] = {}
        allocate = rng.choice((0, 5_000))
        for node in self.controllers:
            loop.clocks[node.name] = DriftingClock(rng.uniform(0, 1e6), self.clock_rate())
            self.disks[node.name] = MemoryDisk(random.Random(rng.getrandbits(64)), allocate)
        self.log(
            f"{count} controllers, reads by {'lease' if self.lease_read else 'index'}"
            f"{f', followers within {self.max_lag}' if self.follower_read else ''}"
            f"{', aimed at leaderships' if self.at_reigns else ''}"
        )

    @property
    def nodes(self) -> list[Node]:
        return self.controllers

    def clock_rate(self) -> float:
        slowest, fastest = self.shape.clock_rates
        return self.random.choice((slowest, fastest, self.random.uniform(slowest, fastest)))

    def change_clock(self, node: Node, rate: float) -> None:
        self.loop.clocks[node.name].change_rate(self.loop.now, rate)

    # -- life ----------------------------------------------------------------------------------------------

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """Raft settings that make snapshots frequent; what is proposed is seen."""
        propose, truth = RaftNode.propose, self.truth

        async def proposing(node: RaftNode, data: bytes) -> object:
            truth.proposed(data)
            return await propose(node, data)

        with (
            mock.patch.object(controller_service, "RaftConfig", self._raft_config),
            mock.patch.object(RaftNode, "propose", proposing),
        ):
            yield

    def _make(self, node: Node) -> ControllerService:
        rng = self.random
        chance = self.chances[node.name] = Chance(rng.getrandbits(64))
        skew_ms = rng.choice((0, 0, rng.randint(-120_000, 120_000)))
        clock = self.wall_clocks[node.name] = HostClock(self.loop, node.name, skew_ms)
        config = ControllerConfig(
            controller_d_leger_group="controllers",
            controller_d_leger_peers=";".join(f"{raft_id(c)}-{endpoint(c)}" for c in self.controllers),
            controller_d_leger_self_id=raft_id(node),
            j_raft_election_timeout_ms=ELECTION_MS,
            enable_lease_read=self.lease_read,
            lease_read_clock_drift_percent=self.shape.drift_percent,
            enable_follower_read=self.follower_read,
            follower_read_max_lag=self.max_lag,
            request_timeout_ms=self._request_timeout_ms,
        )
        service = ControllerService(
            config,
            clock=clock,
            rng=chance,
            disk=self.disks[node.name],
            worker=LoopWorker(),
            event_sink=NoEvents(),
        )
        self.truth.watch(service)
        return service

    def start(self, node: Node) -> None:
        super().start(node)
        assert node.host is not None
        self.on(node.host, self._outlive(node.service))

    async def _outlive(self, service: ControllerService) -> None:
        """A controller stops itself only if its disk fails."""
        cause = await service.failed
        if not isinstance(cause, PowerCut):
            self.loop.failures.append({"exception": cause})

    def crash(self, node: Node) -> None:
        super().crash(node)
        self.disks[node.name].operations_left = None

    def power_cut(self, node: Node, share: float = 0.0) -> None:
        """What was not synced is lost in part, whatever `share` says: a memory disk decides for itself."""
        assert node.host is not None
        self.log(f"power cut {node.name}")
        self.loop.network.crash(node.host, silent=True)
        self.disks[node.name].lose_power()

    def power_cut_at_work(self, node: Node) -> None:
        """The power fails in the middle of the next piece of work on the disk."""
        assert node.host is not None
        left = self.random.randint(0, 5)

        def strike(host: Host, name: str) -> None:
            if not host.alive or name.removeprefix("after ") not in SAVING:
                return
            if name.startswith("after "):
                self.log(f"at work: {name}")
                self.power_cut(node)
            else:
                self.disks[node.name].operations_left = left

        node.host.before_work = strike

    def _continue_on_copy(self, node: Node) -> None:
        """What a dead program had begun on its memory disk never runs."""

    def heal(self) -> None:
        super().heal()
        for node in self.controllers:
            assert node.host is not None
            node.host.paused_until = 0.0
            self.disks[node.name].operations_left = None

    def reconnect(self) -> None:
        super().reconnect()
        for chance in self.chances.values():
            chance.hurried = False

    # -- looking -------------------------------------------------------------------------------------------

    async def within(self, seconds: float, condition: Callable[[], object], look_s: float = 0.02) -> bool:
        """Wait until something is so; False if it is not in time."""
        end = self.loop.now + seconds
        while not condition():
            if self.loop.now > end:
                return False
            await asyncio.sleep(look_s)
        return True

    def leader(self) -> Node | None:
        """The one of the highest term that leads, as it believes."""
        leaders = [node for node in self.controllers if role(node) is Role.LEADER]
        return max(leaders, key=lambda node: int(node.service.node.term), default=None)

    def settled(self) -> bool:
        """Somebody leads, and all members have applied the same."""
        leader = self.leader()
        if leader is None or not leader.service.leading or any(role(c) is None for c in self.controllers):
            return False
        return len({node.service.node.applied_index for node in self.members(leader)}) == 1

    def members(self, leader: Node) -> list[Node]:
        voters = leader.service.node.members.voters
        return [node for node in self.controllers if raft_id(node) in voters]


def raft_id(node: Node) -> str:
    return f"n{node.index}"


def endpoint(node: Node) -> str:
    return f"{node.address}:{CONTROLLER_PORT}"


def role(node: Node) -> Role | None:
    """In Raft; None if it is down or has not recovered."""
    raft = getattr(node.service, "node", None)
    return None if not node.up or raft is None or raft._maybe_core is None else raft.role
