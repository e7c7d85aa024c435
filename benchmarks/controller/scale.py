"""Many broker sets at one group of controllers: what heartbeats cost, and how soon a failure is repaired.

Each broker has its own connections, and sends each of three controllers a heartbeat a second; see `fleet.py`.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

from batonmq.demo.ports import free_ports
from batonmq.net.client import RemotingClient
from batonmq.net.errors import NetError
from batonmq.protocol.bodies.controller import SyncStateSetBody, decode_sync_state_set
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers import controller as headers
from batonmq.protocol.json import encode
from benchmarks.controller.fleet import FleetProcess, Orders, do_all
from benchmarks.controller.group import OURS, Group, processor_s, resident_mb, running
from benchmarks.controller.load import Load, Set
from benchmarks.failover import percentile

Say = Callable[[str], None]

SETS_A_PROCESS = 5_000
"""Each set is one broker of a process, and each broker three connections."""
SETTLE_S = 3.0
INTERVAL_MS = 1_000
"""The default of brokerHeartbeatInterval."""
NOTICE_LIMIT_S = 60.0
ELECTION_TIMEOUT_MS = 1_000
"""The default of jRaftElectionTimeoutMs."""
PROBE_S = 0.005
LOAD_PAUSE_S = 0.1
"""Between two alterations of each broker set that is load."""
SERVED_LIMIT_S = 60.0


# -- heartbeats --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Beating:
    """A group of controllers under the heartbeats of `sets` broker sets with two replicas each."""

    sets: int
    beats_per_s: float
    """To each controller."""
    leader_percent: float
    """Of one core."""
    follower_percent: tuple[float, ...]
    brokers_percent: float
    """The processes that play the brokers, together."""
    leader_mb: float
    late_ms: float
    """By how much the load's own clock was late at worst: much of it means that the machine was full."""
    silent: int
    """Replicas that the controllers lost meanwhile: none, if all is well."""

    def as_json(self) -> dict[str, object]:
        return asdict(self)


@contextmanager
def brokers(
    group: Group, leader: str, sets: int, doomed: int, sharing: int, interval_ms: int = INTERVAL_MS
) -> Iterator[list[FleetProcess]]:
    """Both replicas of all sets, beating; the first fleet has the masters of sets 0 to `doomed` - 1."""
    fleets: list[FleetProcess] = []

    def crew(numbers: range, broker_id: int) -> list[FleetProcess]:
        orders = [
            Orders(
                controllers=group.addresses,
                leader=leader,
                port=free_ports(1)[0],
                sets=list(numbers[first : first + SETS_A_PROCESS]),
                broker_id=broker_id,
                interval_ms=interval_ms,
                sharing=sharing,
            )
            for first in range(0, len(numbers), SETS_A_PROCESS)
        ]
        new = [FleetProcess(each) for each in orders]
        fleets.extend(new)
        return new

    try:
        masters = crew(range(doomed), 1) + crew(range(doomed, sets), 1)
        do_all(masters, "start")
        do_all(masters, "elect")
        slaves = crew(range(sets), 2)
        do_all(slaves, "start")
        do_all(masters, "expand")
        do_all(fleets, "beat")
        time.sleep(SETTLE_S)
        yield fleets
    finally:
        for fleet in fleets:
            fleet.kill()


def measure_beating(
    sets: int, seconds: float, *, sharing: int = 1, interval_ms: int = INTERVAL_MS
) -> Beating:
    with running(OURS) as group:
        leader = asyncio.run(group.leader())
        with brokers(group, leader, sets, 0, sharing, interval_ms) as fleets:
            return watch(group, leader, sets, fleets, seconds)


def watch(group: Group, leader: str, sets: int, fleets: list[FleetProcess], seconds: float) -> Beating:
    do_all(fleets, "load")
    before, began = group.processor_s(), time.monotonic()
    own = sum(processor_s(fleet.process.pid) for fleet in fleets)
    time.sleep(seconds)
    took, after = time.monotonic() - began, group.processor_s()
    own = sum(processor_s(fleet.process.pid) for fleet in fleets) - own
    loads = do_all(fleets, "load")
    used = {address: (after[address] - before[address]) / took * 100 for address in after}
    events = (group.at(leader).directory / group.at(leader).name / "events.jsonl").read_text()
    return Beating(
        sets=sets,
        beats_per_s=sum(load["sent"] for load in loads) / took / len(group.addresses),
        leader_percent=used[leader],
        follower_percent=tuple(percent for address, percent in used.items() if address != leader),
        brokers_percent=own / took * 100,
        leader_mb=resident_mb(group.at(leader).pid),
        late_ms=max(load["late_ms"] for load in loads),
        silent=events.count('"event":"replica-down"'),
    )


# -- many masters die at once ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Deaths:
    """`kill -9` of a process with many masters: ms until the slave of each was notified that it is master."""

    sets: int
    ms: list[float]
    not_notified: int
    before: Beating
    leader_kept: bool
    """False: the controllers changed their leader meanwhile, as they do on a machine that is too full."""

    def as_json(self) -> dict[str, object]:
        return {**asdict(self), "ms": [round(value, 1) for value in self.ms]}


def measure_deaths(sets: int, doomed: int, seconds: float, say: Say) -> Deaths:
    with running(OURS) as group:
        leader = asyncio.run(group.leader())
        say(f"{sets} sets are brought up")
        with brokers(group, leader, sets, doomed, 1) as fleets:
            say("heartbeats alone")
            before = watch(group, leader, sets, fleets, seconds)
            say(f"{doomed} masters die")
            slaves = [fleet for fleet in fleets if fleet.orders.broker_id == 2]
            killed_at = time.monotonic()
            fleets[0].kill()
            deadline = time.monotonic() + NOTICE_LIMIT_S
            notified_ms: dict[int, float] = {}
            while len(notified_ms) < doomed and time.monotonic() < deadline:
                time.sleep(0.5)
                for answer in do_all(slaves, "notices"):
                    for each in answer["notices"]:
                        if each["master_id"] == 2 and each["number"] < doomed:
                            notified_ms.setdefault(each["number"], (each["at_s"] - killed_at) * 1000)
            fleets.pop(0)
            kept = asyncio.run(group.leader()) == leader
            return Deaths(sets, sorted(notified_ms.values()), doomed - len(notified_ms), before, kept)


# -- controllers that die and come back --------------------------------------------------------------------


class Writer:
    """One broker set whose master asks for another SyncStateSet, of whichever controller will answer."""

    def __init__(self, one: Set, addresses: list[str], client: RemotingClient) -> None:
        self._set = one
        self._addresses = addresses
        self._client = client

    async def served(self, without: str | None = None) -> float:
        """When (`time.monotonic`) the next alteration was decided; `without` is not asked."""
        deadline = time.monotonic() + SERVED_LIMIT_S
        asked = [address for address in self._addresses if address != without]
        while time.monotonic() < deadline:
            for address in asked:
                if await self._alter(address):
                    return time.monotonic()
            await asyncio.sleep(PROBE_S)
        raise TimeoutError(f"no controller decided anything for {SERVED_LIMIT_S:.0f} s")

    async def go_on(self) -> None:
        """Ask without end, with a pause: load. The controller that decided last is asked first."""
        while True:
            for address in list(self._addresses):
                if await self._alter(address):
                    self._addresses.remove(address)
                    self._addresses.insert(0, address)
                    break
            await asyncio.sleep(LOAD_PAUSE_S)

    async def _alter(self, address: str) -> bool:
        each = self._set
        try:
            look = await self._client.call(address, headers.GetReplicaInfo(each.name), timeout_ms=1000)
            body = decode_sync_state_set(bytes(look.body))
            members = (1,) if len(body.sync_state_set) == 2 else (1, 2)
            await self._client.call(
                address,
                headers.AlterSyncStateSet(each.name, each.master, each.master_epoch),
                encode(SyncStateSetBody(members, body.sync_state_set_epoch)),
                timeout_ms=1000,
            )
        except (NetError, MQError):
            return False
        return True


@dataclass(frozen=True)
class LeaderLoss:
    """Milliseconds from the signal to the leader until another controller had decided a write, by round."""

    signal: str
    ms: list[float]
    election_timeout_ms: int = ELECTION_TIMEOUT_MS

    def as_json(self) -> dict[str, object]:
        shown = {f"p{p}_ms": round(percentile(self.ms, p)) for p in (50, 99)}
        return {**asdict(self), "ms": [round(value) for value in self.ms], **shown}


async def measure_leader_loss(group: Group, sets: int, rounds: int, *, hang: bool, say: Say) -> LeaderLoss:
    """Kill (or stop with SIGSTOP) the leader `rounds` times, of a group that all broker sets write to."""
    load = Load(group, sets)
    await load.connect()
    await load.bring_up()
    client = RemotingClient(connect_timeout_ms=200)
    writer = Writer(load.sets[0], group.addresses, client)
    others = [Writer(each, list(group.addresses), client) for each in load.sets[1:]]
    going = [asyncio.create_task(other.go_on()) for other in others]
    lost: list[float] = []
    try:
        for number in range(rounds):
            leader = await group.leader()
            await writer.served()
            program = group.at(leader)
            began = time.monotonic()
            if hang:
                program.signal(signal.SIGSTOP)
            else:
                program.kill()
            lost.append((await writer.served(without=leader) - began) * 1000)
            say(f"leader lost {number + 1} of {rounds} times: {lost[-1]:.0f} ms")
            if hang:
                program.signal(signal.SIGCONT)
            else:
                await asyncio.to_thread(program.start)
            await asyncio.sleep(1.0)
    finally:
        for task in going:
            task.cancel()
        await asyncio.gather(*going, return_exceptions=True)
        await client.close()
        load.close()  # not before: with their connections all masters would be lost
    return LeaderLoss("SIGSTOP" if hang else "SIGKILL", lost)


@dataclass(frozen=True)
class Restart:
    """Seconds to come back with `sets` broker sets from a snapshot, by round."""

    sets: int
    snapshot_bytes: int
    one_s: list[float]
    """A follower: from exec to the line that says that it serves."""
    all_s: list[float]
    """The whole group after `kill -9` of all: from exec of the first to the first write decided."""

    def as_json(self) -> dict[str, object]:
        return asdict(self)


def measure_restart(sets: int, rounds: int, say: Say) -> Restart:
    with running(OURS, settings={"jRaftSnapshotIntervalSecs": 5}) as group:
        return asyncio.run(_restart(group, sets, rounds, say))


async def _restart(group: Group, sets: int, rounds: int, say: Say) -> Restart:
    load = Load(group, sets)
    await load.connect()
    say(f"{sets} sets are brought up")
    await load.bring_up()
    say("snapshots are written")
    size = await _snapshots(group)
    client = RemotingClient(connect_timeout_ms=200)
    writer = Writer(load.sets[0], group.addresses, client)
    one: list[float] = []
    everyone: list[float] = []
    try:
        for number in range(rounds):
            leader = await group.leader()
            follower = next(p for p, a in zip(group.programs, group.addresses, strict=True) if a != leader)
            follower.kill()
            began = time.monotonic()
            await asyncio.to_thread(follower.start)
            one.append(time.monotonic() - began)
            await asyncio.sleep(2.0)
            for program in group.programs:
                program.kill()
            began = time.monotonic()
            for program in group.programs:
                await asyncio.to_thread(program.start, wait=False)
            everyone.append(await writer.served() - began)
            say(f"restart {number + 1} of {rounds}: one {one[-1]:.2f} s, all {everyone[-1]:.2f} s")
            await asyncio.sleep(2.0)
    finally:
        await client.close()
        load.close()
    return Restart(sets, size, one, everyone)


async def _snapshots(group: Group) -> int:
    """Wait until each controller has one that holds all; the size of the largest in bytes."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        await asyncio.sleep(6.0)
        newest = [
            max(program.directory.glob(f"{program.name}/raft-*/snapshot-*.raft"), default=None)
            for program in group.programs
        ]
        names = {path.name for path in newest if path is not None}
        if None not in newest and len(names) == 1:
            return max(path.stat().st_size for path in newest if path is not None)
    raise TimeoutError("the controllers did not write a snapshot of the same index within a minute")
