"""A Raft group on virtual time: real cores and real storage, an unreliable network, disks that lose power.

One seed is one schedule. After every step of a node these are checked (names as in the dissertation, figure
3.2): one leader a term, log matching, leader completeness, state machine safety; further that acknowledged
proposals are never lost nor applied twice and that read barriers are linearizable. At the end everything is
healed and the group must come to rest with equal state machines.

    python -m tests.simulation.raft_sim --seeds 1000
"""

from __future__ import annotations

import argparse
import heapq
import random
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from batonmq.raft.config import RaftConfig
from batonmq.raft.core import RaftCore, Role, Save
from batonmq.raft.errors import RaftError
from batonmq.raft.messages import Entry, Kind, Members, Message, Snapshot, SnapshotMeta
from batonmq.raft.storage import Storage
from tests.simulation.memory_disk import MemoryDisk, PowerCut

ELECTION_MS = 100


class Violation(AssertionError):
    """A promise of Raft was broken."""


class Node:
    """The shell of one node: what `batonmq.raft.node` does, on virtual time."""

    def __init__(self, sim: Simulation, name: str, members: Members) -> None:
        self.sim = sim
        self.name = name
        self.bootstrap = members
        self.disk = MemoryDisk(sim.rng)
        self.alive = False
        self.life = 0
        self.paused_until = 0.0
        # Clocks differ by less than the bound that leases are configured for.
        self.clock_rate = sim.rng.uniform(0.96, 1.04)
        self.clock_offset = sim.rng.randrange(1_000_000)
        self.core: RaftCore
        self.storage: Storage
        self.applied: list[bytes] = []
        self.applied_index = 0
        self.applied_term = 0
        self.verified: dict[int, int] = {}
        self.verified_end = (0, 0)
        self.pending: dict[int, tuple[int, bytes]] = {}
        self.reads: dict[int, int] = {}
        self.reads_to_apply: list[tuple[int, int]] = []
        self.read_number = 0
        self.snapshot_running = False
        self.load_running = False
        self.timer_at = -1.0

    def now(self) -> int:
        return int(self.clock_offset + self.sim.now * self.clock_rate)

    def start(self) -> None:
        sim = self.sim
        self.alive = True
        self.life += 1
        self.storage = Storage(self.disk, "g", self.name, segment_bytes=sim.segment_bytes)
        recovered = self.storage.open()
        self.applied, self.applied_index, self.applied_term = [], 0, 0
        meta = None
        if recovered.snapshot is not None:
            meta = recovered.snapshot.meta
            self.restore(recovered.snapshot)
        self.core = RaftCore(
            self.name,
            sim.config,
            members=self.bootstrap,
            rng=sim.rng,
            now_ms=self.now(),
            hard_state=recovered.hard_state,
            log=recovered.log,
            snapshot=meta,
        )
        self.verified = {}
        self.verified_end = (0, 0)
        self.pending, self.reads, self.reads_to_apply = {}, {}, []
        self.snapshot_running = self.load_running = False
        self.timer_at = -1.0
        self.settle()

    def crash(self) -> None:
        """Lose power, perhaps in the middle of what the disk is doing."""
        save = self.core._in_flight
        rng = self.sim.rng
        self.disk.operations_left = rng.randint(0, 12)
        try:
            if save is not None and rng.random() < 0.7:
                self.storage.save(save)
            elif self.snapshot_running:
                self.storage.write_snapshot(self.take_snapshot())
        except PowerCut:
            pass
        self.disk.lose_power()
        self.alive = False
        self.life += 1

    def restore(self, snapshot: Snapshot) -> None:
        self.applied = msgspec.msgpack.decode(snapshot.data, type=list[bytes])
        self.applied_index, self.applied_term = snapshot.meta.index, snapshot.meta.term

    def take_snapshot(self) -> Snapshot:
        meta = SnapshotMeta(self.applied_index, self.applied_term, self.core.members_at(self.applied_index))
        return Snapshot(meta, msgspec.msgpack.encode(self.applied))

    def settle(self) -> None:
        """What a shell does after each input: pass on all that came out, then check."""
        sim, core = self.sim, self.core
        ready = core.ready(self.now())
        for peer, message in ready.messages:
            sim.send(self.name, peer, message)
        if ready.snapshot is not None:
            sim.installs += 1
            self.restore(ready.snapshot)
            for index in [i for i in self.pending if i <= self.applied_index]:
                del self.pending[index]
        for place, entry in enumerate(ready.entries):
            self.apply(ready.first_index + place, entry)
        for number, index in ready.reads:
            if number in self.reads:
                if index is None:
                    del self.reads[number]
                else:
                    self.reads_to_apply.append((number, index))
        for number, index in list(self.reads_to_apply):
            if index <= self.applied_index:
                self.reads_to_apply.remove((number, index))
                sim.read_answered(self.reads.pop(number), self.applied_index)
        if ready.needs_snapshot and not self.load_running:
            self.load_running = True
            self.later(sim.disk_ms(), self.load_snapshot)
        save = core.take_save()
        if save is not None:
            self.later(sim.disk_ms(), self.saved, save)
        snapshot_index = core.snapshot.index if core.snapshot else 0
        if self.applied_index - snapshot_index >= sim.snapshot_entries and not self.snapshot_running:
            self.snapshot_running = True
            self.later(sim.disk_ms(), self.write_snapshot, self.take_snapshot())
        self.arm()
        sim.check(self)

    def arm(self) -> None:
        deadline = (self.core.next_deadline_ms() + 1 - self.clock_offset) / self.clock_rate
        if self.timer_at < self.sim.now or self.timer_at > deadline:
            self.timer_at = max(deadline, self.sim.now + 0.1)
            self.sim.at(self.timer_at, self.guard(self.tick))

    def tick(self) -> None:
        self.timer_at = -1.0
        if self.now() >= self.core.next_deadline_ms():
            self.core.tick(self.now())
        self.settle()

    def later(self, delay: float, action: Callable[..., None], *args: Any) -> None:
        self.sim.at(self.sim.now + delay, self.guard(action, *args))

    def guard(self, action: Callable[..., None], *args: Any) -> Callable[[], None]:
        """Runs only in this life of the node, and not while it is paused."""
        life = self.life

        def run() -> None:
            if not self.alive or self.life != life:
                return
            if self.sim.now < self.paused_until:
                self.sim.at(self.paused_until, run)
                return
            action(*args)

        return run

    def saved(self, save: Save) -> None:
        self.storage.save(save)
        for peer, message in self.core.saved(save, self.now()):
            self.sim.send(self.name, peer, message)
        if save.snapshot is not None:
            self.storage.drop_before(save.snapshot.meta.index)
        self.settle()

    def write_snapshot(self, snapshot: Snapshot) -> None:
        self.storage.write_snapshot(snapshot)
        self.snapshot_running = False
        self.core.compacted(snapshot.meta)
        if self.core._in_flight is None:
            self.storage.drop_before(snapshot.meta.index)
        self.settle()

    def load_snapshot(self) -> None:
        self.load_running = False
        snapshot = self.storage.load_snapshot()
        if snapshot is not None:
            self.core.snapshot_loaded(snapshot)
        self.settle()

    def receive(self, sender: str, message: Message) -> None:
        self.core.step(sender, message, self.now())
        self.settle()

    def apply(self, index: int, entry: Entry) -> None:
        if index != self.applied_index + 1:
            raise Violation(f"{self.name} applies {index} after {self.applied_index}")
        self.applied_index, self.applied_term = index, entry.term
        self.sim.committed_entry(self, index, entry)
        if entry.kind == Kind.DATA:
            self.applied.append(entry.data)
        waiting = self.pending.pop(index, None)
        if waiting is not None and waiting[0] == entry.term:
            self.sim.acknowledge(index, waiting[1])

    def propose(self, payloads: list[bytes]) -> None:
        try:
            first = self.core.propose(payloads)
        except RaftError:
            return
        for place, payload in enumerate(payloads):
            self.pending[first + place] = (self.core.term, payload)
        self.settle()

    def read(self) -> None:
        self.read_number += 1
        self.reads[self.read_number] = self.sim.read_floor
        self.core.read(self.read_number, self.now())
        self.settle()


class Simulation:
    def __init__(self, seed: int, *, nodes: int | None = None) -> None:
        self.seed = seed
        rng = self.rng = random.Random(seed)
        count = nodes if nodes is not None else rng.choice([3, 3, 5])
        self.membership_changes = rng.random() < 0.4
        self.config = RaftConfig(
            election_timeout_ms=ELECTION_MS,
            max_append_bytes=rng.choice([100, 1_000, 100_000]),
            max_inflight_bytes=rng.choice([200, 5_000, 1_000_000]),
            max_inflight_messages=rng.choice([1, 4, 256]),
            snapshot_chunk_bytes=rng.choice([1_000, 5_000, 100_000]),
            trailing_entries=rng.choice([0, 5, 40]),
            lease_read=rng.random() < 0.4,
        )
        self.segment_bytes = rng.choice([600, 3_000, 1_000_000])
        self.snapshot_entries = rng.choice([8, 30, 1_000_000])
        self.loss = rng.choice([0.0, 0.02, 0.15])
        self.duplication = rng.choice([0.0, 0.05])
        self.delay_ms = rng.choice([0.5, 2.0, 15.0])
        self.disk_mean_ms = rng.choice([0.2, 2.0, 20.0])
        self.faults = True
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._sequence = 0
        self.trace: deque[str] = deque(maxlen=60)
        self.blocked: set[tuple[str, str]] = set()

        self.leaders: dict[int, str] = {}
        self.entries: dict[tuple[int, int], tuple[int, Entry]] = {}
        self.committed: dict[int, Entry] = {}
        self.committed_in: dict[int, int] = {}
        self.max_committed = 0
        self.acknowledged: dict[int, bytes] = {}
        self.read_floor = 0
        self.reads_answered = 0
        self.elections = 0
        self.installs = 0
        self.crashes = 0
        self._proposed = 0

        names = [f"n{i}" for i in range(count)]
        members = Members(dict.fromkeys(names, ""))
        self.nodes = {name: Node(self, name, members) for name in names}
        if self.membership_changes:
            for extra in ("m0", "m1"):
                # A node that joins knows of no membership until the log tells it.
                self.nodes[extra] = Node(self, extra, Members({}))

    # ------------------------------------------------------------------ the world

    def at(self, when: float, action: Callable[[], None]) -> None:
        self._sequence += 1
        heapq.heappush(self._events, (when, self._sequence, action))

    def log(self, text: str) -> None:
        self.trace.append(f"{self.now:9.1f} {text}")

    def disk_ms(self) -> float:
        return self.rng.expovariate(1 / self.disk_mean_ms)

    def send(self, sender: str, target: str, message: Message) -> None:
        rng = self.rng
        if (sender, target) in self.blocked or target not in self.nodes or rng.random() < self.loss:
            return
        node = self.nodes[target]
        if node.alive:
            node.later(rng.expovariate(1 / self.delay_ms), node.receive, sender, message)
            if rng.random() < self.duplication:
                node.later(rng.expovariate(1 / self.delay_ms) * 5, node.receive, sender, message)

    def run_until(self, end: float) -> None:
        while self._events and self._events[0][0] <= end:
            self.now, _, action = heapq.heappop(self._events)
            action()
        self.now = end

    # ------------------------------------------------------------------ checks

    def check(self, node: Node) -> None:
        core = node.core
        if core.role is Role.LEADER and self.leaders.get(core.term) != node.name:
            if core.term in self.leaders:
                raise Violation(f"two leaders in term {core.term}: {self.leaders[core.term]}, {node.name}")
            self.leaders[core.term] = node.name
            self.elections += 1
            self.log(f"{node.name} leads term {core.term}")
            for index in range(core.log.first_index, self.max_committed + 1):
                if self.committed_in[index] >= core.term:
                    continue  # an old candidate that won late: it can commit nothing
                held = core.log.term(index)
                if held != self.committed[index].term:
                    raise Violation(
                        f"leader {node.name} of term {core.term} holds term {held} at {index}, "
                        f"committed was {self.committed[index].term}"
                    )
        self.check_log(node)

    def check_log(self, node: Node) -> None:
        log = node.core.log
        end = (log.last_index, log.last_term)
        if end == node.verified_end:
            return
        node.verified_end = end
        for index in range(log.last_index, log.base_index, -1):
            entry = log.entry(index)
            if node.verified.get(index) == entry.term:
                break
            node.verified[index] = entry.term
            before = log.term(index - 1)
            assert before is not None
            known = self.entries.setdefault((index, entry.term), (before, entry))
            if known != (before, entry):
                raise Violation(f"logs differ at {index} term {entry.term}: {known} and {(before, entry)}")

    def committed_entry(self, node: Node, index: int, entry: Entry) -> None:
        known = self.committed.setdefault(index, entry)
        self.committed_in.setdefault(index, node.core.term)
        if known != entry:
            raise Violation(f"{node.name} applies {entry} at {index}, another node applied {known}")
        self.max_committed = max(self.max_committed, index)

    def acknowledge(self, index: int, payload: bytes) -> None:
        self.acknowledged[index] = payload
        self.read_floor = max(self.read_floor, index)

    def read_answered(self, floor: int, index: int) -> None:
        self.reads_answered += 1
        if index < floor:
            raise Violation(f"a read saw the state at {index}, though {floor} was visible before it began")
        self.read_floor = max(self.read_floor, index)

    # ------------------------------------------------------------------ what happens

    def leader(self) -> Node | None:
        leaders = [n for n in self.nodes.values() if n.alive and n.core.role is Role.LEADER]
        return max(leaders, key=lambda n: n.core.term) if leaders else None

    def client(self) -> None:
        rng = self.rng
        nodes = [node for node in self.nodes.values() if node.alive]
        leaders = [node for node in nodes if node.core.role is Role.LEADER]
        if nodes:
            # Often a leader, be it one that only believes to be it; what reaches a paused node waits there.
            node = rng.choice(leaders if leaders and rng.random() < 0.7 else nodes)
            if rng.random() < 0.3:
                self.at(self.now, node.guard(node.read))
            else:
                payloads = []
                for _ in range(rng.choice([1, 1, 5])):
                    self._proposed += 1
                    payloads.append(b"%d:" % self._proposed + bytes(rng.choice([0, 0, 10, 10, 10, 600])))
                self.at(self.now, node.guard(node.propose, payloads))
        if self.faults:
            self.at(self.now + rng.expovariate(1 / 6), self.client)

    def fault(self) -> None:
        rng = self.rng
        if not self.faults:
            return
        names = list(self.nodes)
        kind = rng.choice(
            ["crash", "crash", "crash leader", "isolate", "one-way", "split", "pause", "all", "calm"]
        )
        self.log(f"fault: {kind}")
        if kind in ("crash", "crash leader"):
            node = self.leader() if kind == "crash leader" else self.nodes[rng.choice(names)]
            if node is not None and node.alive:
                self.crash(node)
        elif kind == "isolate":
            one = rng.choice(names)
            self.block({(one, other) for other in names} | {(other, one) for other in names})
        elif kind == "one-way":
            one, other = rng.choice(names), rng.choice(names)
            self.block({(one, other)} if rng.random() < 0.5 else {(one, x) for x in names})
        elif kind == "split":
            side = {name for name in names if rng.random() < 0.5}
            self.block({(a, b) for a in names for b in names if (a in side) != (b in side)})
        elif kind == "pause":
            node = self.leader() if rng.random() < 0.5 else self.nodes[rng.choice(names)]
            if node is not None:
                node.paused_until = self.now + rng.uniform(10, 4 * ELECTION_MS)
        elif kind == "all" and rng.random() < 0.3:
            for node in self.nodes.values():
                if node.alive:
                    self.crash(node)
        self.at(self.now + rng.expovariate(1 / 150), self.fault)

    def crash(self, node: Node) -> None:
        node.crash()
        self.crashes += 1
        self.log(f"{node.name} crashed")
        self.at(self.now + self.rng.uniform(5, 300), lambda: self.restart(node))

    def restart(self, node: Node) -> None:
        if not node.alive:
            node.start()
            core = node.core
            self.log(
                f"{node.name} is back at term {core.term}, log {core.log.base_index}..{core.log.last_index}"
            )

    def block(self, links: set[tuple[str, str]]) -> None:
        self.blocked |= links
        self.at(
            self.now + self.rng.uniform(20, 6 * ELECTION_MS), lambda: self.blocked.difference_update(links)
        )

    def administer(self) -> None:
        """Changes of the membership and of the leader, at any time, sensible or not."""
        rng = self.rng
        leader = self.leader()
        if leader is not None and leader.paused_until <= self.now:
            core = leader.core
            name = rng.choice(list(self.nodes))
            voters, learners = dict(core.members.voters), dict(core.members.learners)
            try:
                if rng.random() < 0.3:
                    core.transfer_leadership(name, leader.now())
                    self.log(f"{leader.name} hands over to {name}")
                elif self.membership_changes:
                    if name in learners:
                        del learners[name]
                        voters[name] = ""
                    elif name not in voters:
                        learners[name] = ""
                    elif len(voters) > 2:
                        del voters[name]
                    core.change_members(Members(voters, learners))
                    self.log(f"{leader.name} changes members to {list(voters)} + {list(learners)}")
            except RaftError:
                pass
            leader.settle()
        if self.faults:
            self.at(self.now + rng.expovariate(1 / 200), self.administer)

    def run(self, duration_ms: float = 2_000) -> None:
        """All of it. Raises Violation or AssertionError."""
        for node in self.nodes.values():
            self.at(self.rng.uniform(0, 50), lambda node=node: self.restart(node))
        self.at(60, self.client)
        self.at(300, self.fault)
        self.at(400, self.administer)
        self.run_until(duration_ms)
        self.heal()
        self.check_end()

    def heal(self) -> None:
        self.log("healing")
        self.faults = False
        self.loss = self.duplication = 0.0
        self.delay_ms = min(self.delay_ms, 2.0)
        self.disk_mean_ms = min(self.disk_mean_ms, 2.0)
        self.blocked.clear()
        for node in self.nodes.values():
            node.paused_until = 0.0
            self.restart(node)
        for _ in range(40):
            self.run_until(self.now + 2 * ELECTION_MS)
            self.blocked.clear()
            for node in self.nodes.values():
                self.restart(node)
            leader = self.leader()
            if leader is None:
                continue
            self._proposed += 1
            leader.propose([b"%d:last" % self._proposed])
            leader.read()
            self.run_until(self.now + 2 * ELECTION_MS)
            if self.at_rest(leader):
                return
        state = {
            n.name: (n.core.role.value, n.core.term, n.core.commit_index, n.core.log.last_index)
            for n in self.nodes.values()
        }
        raise Violation(f"the healed group does not come to rest: {state}")

    def at_rest(self, leader: Node) -> bool:
        if self.leader() is not leader:
            return False
        members = leader.core.members.all()
        return all(self.nodes[m].applied_index == leader.core.log.last_index for m in members) and bool(
            self.acknowledged
        )

    def check_end(self) -> None:
        leader = self.leader()
        assert leader is not None
        final = leader.applied
        for member in leader.core.members.all():
            if self.nodes[member].applied != final:
                raise Violation(f"{member} ends with another state than {leader.name}")
        if len(set(final)) != len(final):
            raise Violation("a proposal was applied twice")
        lost = set(self.acknowledged.values()) - set(final)
        if lost:
            raise Violation(f"acknowledged proposals were lost: {sorted(lost)[:5]}")


def run_seed(seed: int, nodes: int | None = None, duration_ms: float = 2_000) -> Simulation:
    """Run one schedule; on failure the last events go to stderr."""
    simulation = Simulation(seed, nodes=nodes)
    try:
        simulation.run(duration_ms)
    except Exception:
        print(f"seed {seed} failed; the last events:", *simulation.trace, sep="\n  ", file=sys.stderr)
        raise
    return simulation


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--seeds", type=int, default=100, help="how many schedules")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--nodes", type=int, help="size of the group; else the seed decides")
    parser.add_argument("--duration", type=float, default=2_000, help="virtual ms before healing")
    options = parser.parse_args()
    failed: list[int] = []
    acknowledged = elections = reads = 0
    started = time.monotonic()
    for seed in range(options.first, options.first + options.seeds):
        try:
            simulation = run_seed(seed, options.nodes, options.duration)
        except Exception:
            traceback.print_exc()
            failed.append(seed)
            continue
        acknowledged += len(simulation.acknowledged)
        elections += simulation.elections
        reads += simulation.reads_answered
    print(
        f"{options.seeds} seeds in {time.monotonic() - started:.0f} s: {acknowledged} proposals, "
        f"{reads} reads, {elections} elections, failed: {failed or 'none'}"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
