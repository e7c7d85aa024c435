"""A Raft group on virtual time: real cores and real storage, an unreliable network, disks that lose power.

One seed is one schedule: the size of the group, its settings, what clients ask, what operators change and
what breaks. What must hold after each step is in `raft_checks.py`; at the end everything is healed, and the
group must come to rest with equal state machines.

    python -m tests.simulation raft --seeds 1000
"""

from __future__ import annotations

import contextlib
import functools
import heapq
import math
import random
import sys
import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from batonmq.raft.config import RaftConfig
from batonmq.raft.errors import RaftError
from batonmq.raft.messages import InstallSnapshot, Members, Message, SnapshotMeta
from batonmq.raft.state import Role
from tests.simulation.raft_checks import Invariants
from tests.simulation.raft_node import Delivery, DriftingClock, Node, World
from tests.simulation.raft_violation import Violation

ELECTION_MS = 100
MAX_CLOCK_DRIFT = 0.1
"""What leases are configured for; the clocks of a sound world keep to it."""


@dataclass(frozen=True)
class Shape:
    """What a schedule is like beyond what its seed decides."""

    nodes: int | None = None
    """Size of the group; else the seed decides: mostly five, or seven, or three."""
    lease_read: bool | None = None
    clock_rates: tuple[float, float] = (0.955, 1.05)
    """Slowest and fastest clock. Their ratio is within MAX_CLOCK_DRIFT."""
    duration_ms: float = 2_000
    closings: bool = True
    """Peers of a crashed node see that its process is gone; and sometimes believe it of one that lives."""
    duels: bool = False
    """Nothing breaks but what is worst for a lease, again and again: the leader, on the slowest clock, is cut
    off and can still be asked, while the others, on the fastest, have reason to elect another."""
    forged: bool = False
    """Followers get snapshots that their leader never sent, and whose contents nobody can restore."""


def exponential(rng: random.Random, mean: float) -> float:
    """As `random.expovariate`, to the last bit, without its call in Python."""
    return -math.log(1.0 - rng.random()) / (1 / mean)


class Simulation(World):
    def __init__(self, seed: int, shape: Shape = Shape()) -> None:
        self.seed, self.shape = seed, shape
        rng = self.rng = random.Random(seed)
        count = shape.nodes if shape.nodes is not None else rng.choice([5, 5, 5, 7, 3])
        self.membership_changes = rng.random() < 0.5
        lease_read = rng.random() < 0.4
        self.config = RaftConfig(
            election_timeout_ms=ELECTION_MS,
            max_append_bytes=rng.choice([100, 1_000, 100_000]),
            max_inflight_bytes=rng.choice([200, 5_000, 1_000_000]),
            max_inflight_messages=rng.choice([1, 4, 256]),
            snapshot_chunk_bytes=rng.choice([1_000, 5_000, 100_000]),
            trailing_entries=rng.choice([0, 5, 40]),
            lease_read=shape.lease_read if shape.lease_read is not None else lease_read,
            max_clock_drift=MAX_CLOCK_DRIFT,
        )
        self.segment_bytes = rng.choice([600, 3_000, 1_000_000])
        self.allocate_bytes = rng.choice([0, 700, 5_000])
        self.snapshot_entries = rng.choice([8, 30, 1_000_000])
        self.loss = rng.choice([0.0, 0.02, 0.15])
        self.duplication = rng.choice([0.0, 0.05, 0.3])
        self.delay_ms = rng.choice([0.5, 2.0, 15.0])
        self.disk_mean_ms = rng.choice([0.2, 2.0, 20.0])
        if shape.duels:
            self.membership_changes = False
            self.loss = self.duplication = 0.0
            self.delay_ms, self.disk_mean_ms = rng.choice([0.3, 1.0, 3.0]), 0.2
        self.closings = random.Random(~seed)
        """A separate source: what is not looked at does not change the schedule."""
        self.forger = random.Random(seed + 1)
        self.faults = True
        self.now = 0.0
        self.crashes = self.replaced = 0
        self.checks = Invariants()
        self.trace: deque[str] = deque(maxlen=60)
        self.slow: dict[str, float] = {}
        """Node -> how many times longer its messages take, in and out."""
        self.blocked: dict[tuple[str, str], int] = {}
        """(from, to) -> how many faults block this way now."""
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._sequence = 0
        self._proposed = 0
        self._replacing: tuple[str, str] | None = None
        self._fresh = 0

        names = [f"n{i}" for i in range(count)]
        members = Members(dict.fromkeys(names, ""))
        self.nodes = self.checks.nodes
        for name in names:
            self._add(name, members)
        if self.membership_changes:
            self._add_fresh()
            self._add_fresh()

    def _add(self, name: str, members: Members) -> None:
        clock = DriftingClock(self.rng.randrange(1_000_000), self._clock_rate())
        self.nodes[name] = Node(self, name, members, clock)

    def _add_fresh(self) -> str:
        """A machine that may join: it knows of no membership until the log has it."""
        name = f"m{self._fresh}"
        self._fresh += 1
        self._add(name, Members({}))
        return name

    def _clock_rate(self) -> float:
        # The ends are where leases are at risk.
        slowest, fastest = self.shape.clock_rates
        return self.rng.choice([slowest, fastest, self.rng.uniform(slowest, fastest)])

    # ------------------------------------------------------------------ the world

    def at(self, when: float, action: Callable[[], None]) -> None:
        self._sequence += 1
        heapq.heappush(self._events, (when, self._sequence, action))

    def log(self, text: str) -> None:
        self.trace.append(f"{self.now:9.1f} {text}")

    def disk_ms(self) -> float:
        return exponential(self.rng, self.disk_mean_ms)

    def send(self, sender: str, target: str, message: Message) -> None:
        self.checks.sent(sender, target, message)
        rng = self.rng
        if (sender, target) in self.blocked or target not in self.nodes or rng.random() < self.loss:
            return
        node = self.nodes[target]
        if node.alive:
            # Messages have different delays: they overtake each other.
            mean = self.delay_ms
            if self.slow:
                mean *= max(self.slow.get(sender, 1), self.slow.get(target, 1))
            self.at(self.now + exponential(rng, mean), Delivery(node, sender, message))
            if rng.random() < self.duplication:
                self.at(self.now + exponential(rng, mean) * 5, Delivery(node, sender, message))

    def run_until(self, end: float) -> None:
        events = self._events
        while events and events[0][0] <= end:
            self.now, _, action = heapq.heappop(events)
            action()
        self.now = end

    # ------------------------------------------------------------------ clients

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
            if len(leaders) > 1 and rng.random() < 0.5:
                # Where there are two, the new one shall write and the old one shall be asked.
                old, *_, new = sorted(leaders, key=lambda each: each.core.term)
                self._proposed += 1
                self.at(self.now, new.guard(new.propose, [b"%d:" % self._proposed]))
                self.at(self.now, old.guard(old.read))
            elif rng.random() < 0.3:
                self.at(self.now, node.guard(node.read))
            else:
                payloads = []
                for _ in range(rng.choice([1, 1, 5])):
                    self._proposed += 1
                    payloads.append(b"%d:" % self._proposed + bytes(rng.choice([0, 0, 10, 10, 10, 600])))
                self.at(self.now, node.guard(node.propose, payloads))
        if self.faults:
            self.at(self.now + rng.expovariate(1 / 6), self.client)

    # ------------------------------------------------------------------ faults

    FAULTS = (
        *(
            "crash",
            "crash",
            "crash leader",
            "isolate",
            "isolate leader",
            "one-way",
            "deaf leader",
            "mute leader",
        ),
        *("split", "bridge", "pause", "pause leader", "clocks", "snapshots", "all", "calm"),
        *("contest leader", "amnesia leader", "storm leader", "hurry leader", "purge leader", "slow leader"),
    )

    def fault(self) -> None:
        rng = self.rng
        if not self.faults:
            return
        names = [name for name, node in self.nodes.items() if not node.gone]
        kind = rng.choice(self.FAULTS)
        leader = self.leader()
        one = leader.name if leader is not None and kind.endswith("leader") else rng.choice(names)
        node = self.nodes[one]
        self.log(f"fault: {kind} {one}")
        if kind.startswith("crash"):
            self.crash(node)
        elif kind.startswith("isolate"):
            self.block({(one, other) for other in names} | {(other, one) for other in names})
        elif kind == "one-way":
            self.block({(one, rng.choice(names))})
        elif kind == "deaf leader":
            self.block({(other, one) for other in names})
        elif kind == "mute leader":
            self.block({(one, other) for other in names})
        elif kind == "split":
            side = {name for name in names if rng.random() < 0.5}
            self.block({(a, b) for a in names for b in names if (a in side) != (b in side)})
        elif kind == "bridge":
            # Two halves that only one node reaches both of.
            side = {name for name in names if rng.random() < 0.5}
            rest = [name for name in names if name != one]
            self.block({(a, b) for a in rest for b in rest if (a in side) != (b in side)})
        elif kind.startswith("pause"):
            node.paused_until = self.now + rng.uniform(10, 4 * ELECTION_MS)
            if node.alive:
                # Ahead of all that will wait there then: nothing else has brought it the time.
                self.at(node.paused_until, node.guard(node.read))
        elif kind == "clocks":
            for each in self.nodes.values():
                each.clock.change_rate(self.now, self._clock_rate())
        elif kind == "snapshots":
            for each in self.nodes.values():
                if rng.random() < 0.6:
                    self.at(self.now + rng.uniform(0, 20), each.guard(each.begin_snapshot))
        elif kind.startswith("contest"):
            # One follower loses it first and stands for election; then the others lose it too.
            rival = rng.choice(names)
            self.block({(one, rival), (rival, one)})
            self.isolate_when_rivalled(node, self.nodes[rival])
        elif kind.startswith("amnesia"):
            # It is cut off; all others restart and elect at once, if nothing holds them back.
            self.block({(one, other) for other in names} | {(other, one) for other in names})
            for name in names:
                if name != one:
                    self.crash(self.nodes[name], rng.uniform(1, 10))
            self.press()
        elif kind.startswith("hurry"):
            self._hurry(one)
            self.at(self.now + rng.uniform(0, ELECTION_MS), lambda: self._refuse(one))
        elif kind.startswith("purge"):
            # In a minority, somebody asks the leader to remove all whom it cannot reach.
            side = {one, *rng.sample(names, (len(names) - 1) // 2)}
            self.block({(a, b) for a in names for b in names if (a in side) != (b in side)})
            if self.membership_changes:
                self.at(self.now, node.guard(self._purge, node, side))
        elif kind.startswith("slow"):
            self.slow[one] = rng.choice([5, 20])
            self.at(self.now + rng.uniform(50, 400), functools.partial(self._hasten, one))
        elif kind.startswith("storm"):
            self.storm(rng.randint(2, 6))
        elif kind == "all" and rng.random() < 0.4:
            for each in list(self.nodes.values()):
                self.crash(each)
        self.at(self.now + rng.expovariate(1 / 120), self.fault)

    def _hasten(self, one: str) -> None:
        self.slow.pop(one, None)

    def forge(self) -> None:
        if not self.faults:
            return
        node = self.forger.choice(list(self.nodes.values()))
        self.at(self.now, node.guard(self._send_forged, node))
        self.at(self.now + self.forger.expovariate(1 / 20), self.forge)

    def _send_forged(self, node: Node) -> None:
        """It names no entry that the node has and that may yet be committed: that could be true."""
        core, rng = node.core, self.forger
        if core.role is not Role.FOLLOWER or core.leader_id is None:
            return
        index = rng.choice([core.commit_index, core.log.last_index + rng.choice([1, 5, 1 << 40, 1 << 50])])
        meta = SnapshotMeta(index, rng.choice([1, core.term]), core.members)
        node.receive(core.leader_id, InstallSnapshot(core.term, meta, 1, zlib.crc32(b"\xc1"), 0, b"\xc1"))

    def isolate_when_rivalled(self, leader: Node, rival: Node) -> None:
        """When a lease would be wrong: another one is elected, and the old leader cannot learn of it."""
        end = self.now + 3 * ELECTION_MS

        def look() -> None:
            if self.now > end or not (leader.alive and rival.alive) or leader is rival:
                return
            if rival.core.role in (Role.CANDIDATE, Role.LEADER):
                self.log(f"isolating {leader.name}, as {rival.name} stands for election")
                self.block({(leader.name, n) for n in self.nodes} | {(n, leader.name) for n in self.nodes})
                self.press()
            else:
                self.at(self.now + 1, look)

        look()

    def _hurry(self, one: str) -> None:
        """The worst for its lease: its clock is the slowest, all others are the fastest."""
        slowest, fastest = self.shape.clock_rates
        for name, each in self.nodes.items():
            each.clock.change_rate(self.now, slowest if name == one else fastest)

    def _refuse(self, one: str) -> None:
        """It is cut off and can still be asked, as if its address refused connections: all miss it."""
        self.block({(one, other) for other in self.nodes} | {(other, one) for other in self.nodes})
        for name, node in self.nodes.items():
            if node.alive and name != one:
                self.at(self.now + self.closings.uniform(0, 3), node.guard(node.lost, one))
        self.press()

    def _wait_least(self, node: Node) -> None:
        """After a restart the wait is drawn from a wide range: here it is the shortest there is."""
        if node.alive:
            node.core.election.timer.deadline_ms = node.now() + 2 * self.config.heartbeat_interval_ms
            node.settle()

    def duel(self) -> None:
        """One of the ways to get a second leader while the first may still trust its lease."""
        if not self.faults:
            return
        leader, rng = self.leader(), self.rng
        if leader is None:
            self.at(self.now + 10, self.duel)
            return
        self.at(self.now + 4 * ELECTION_MS, self.duel)
        one = leader.name
        others = [name for name in self.nodes if name != one]
        rival = self.nodes[rng.choice(others)]
        kind = rng.choice(["refused", "restarted", "contested", "transferred", "paused"])
        self.log(f"duel: {kind} {one}")
        self._hurry(one)
        when = self.now + rng.uniform(20, 40)
        if kind == "refused":
            self.at(when, lambda: self._refuse(one))
        elif kind == "restarted":
            self.block({(one, other) for other in others} | {(other, one) for other in others})
            for other in others:
                self.crash(self.nodes[other], rng.uniform(0.1, 1))
            self.at(self.now + 1, lambda: self._wait_least(rival))
            self.press()
        elif kind == "contested":
            # One has received nothing from the leader for a while; the others have, until it asks them.
            self.block({(one, rival.name), (rival.name, one)})
            self.at(self.now + rng.uniform(0, 3), rival.guard(rival.lost, one))
            self.isolate_when_rivalled(leader, rival)
        elif kind == "transferred":
            with contextlib.suppress(RaftError):  # it lost the lead, or is handing it over already
                leader.core.transfer_leadership(rival.name, leader.now())
                leader.settle()
            self.isolate_when_rivalled(leader, rival)
        else:
            leader.paused_until = when + rng.uniform(50, 150)
            self.at(leader.paused_until, leader.guard(leader.read))
            self.at(when, lambda: self._refuse(one))

    def press(self) -> None:
        """For as long as a lease could last: where there are two leaders, the new one writes and the old one
        is asked, again and again."""
        end = self.now + ELECTION_MS

        def look() -> None:
            if not self.faults or self.now > end:
                return
            leaders = [node for node in self.nodes.values() if node.alive and node.core.role is Role.LEADER]
            if len(leaders) > 1:
                old, *_, new = sorted(leaders, key=lambda each: each.core.term)
                self._proposed += 1
                new.guard(new.propose, [b"%d:" % self._proposed])()
                old.guard(old.read)()
            self.at(self.now + 1, look)

        look()

    def storm(self, count: int) -> None:
        """Leaders that crash soon after they were elected and are back at once (figure 3.7)."""
        leader = self.leader()
        if leader is not None:
            self.crash(leader, self.rng.uniform(1, 60))
        if count and self.faults:
            self.at(self.now + self.rng.uniform(5, ELECTION_MS), lambda: self.storm(count - 1))

    def crash(self, node: Node, down_ms: float | None = None) -> None:
        if not node.alive:
            return
        node.crash()
        self.crashes += 1
        self.log(f"{node.name} crashed")
        self.tell_lost(node.name)
        down_ms = down_ms if down_ms is not None else self.rng.uniform(5, 300)
        self.at(self.now + down_ms, lambda: self.restart(node))

    def tell_lost(self, name: str) -> None:
        """Connections to a process that is gone are closed, be it by the machine that it ran on."""
        if self.shape.closings and self.closings.random() < 0.7:
            for other in list(self.nodes.values()):
                if other.alive and self.closings.random() < 0.8:
                    delay = self.closings.expovariate(1 / self.closings.choice([0.5, 2, 30]))
                    self.at(self.now + delay, other.guard(other.lost, name))

    def alarm(self) -> None:
        """Somebody, or everybody, is wrong about a leader that lives."""
        nodes = [node for node in self.nodes.values() if node.alive and node.core.leader_id]
        count = self.closings.choice([1, 1, len(nodes)])
        for node in self.closings.sample(nodes, min(count, len(nodes))):
            leader = node.core.leader_id
            assert leader is not None
            self.at(self.now, node.guard(node.lost, leader))
        if self.faults:
            self.at(self.now + self.closings.expovariate(1 / 300), self.alarm)

    def restart(self, node: Node) -> None:
        if not node.alive and not node.gone:
            node.start()
            core = node.core
            self.log(
                f"{node.name} is back at term {core.term}, log {core.log.base_index}..{core.log.last_index}"
            )

    def block(self, links: set[tuple[str, str]]) -> None:
        for link in links:
            self.blocked[link] = self.blocked.get(link, 0) + 1

        def unblock() -> None:
            for link in links:
                count = self.blocked.get(link, 0)
                if count > 1:
                    self.blocked[link] = count - 1
                else:
                    self.blocked.pop(link, None)

        self.at(self.now + self.rng.uniform(20, 6 * ELECTION_MS), unblock)

    # ------------------------------------------------------------------ operators

    def administer(self) -> None:
        """Changes of the membership and of the leader, at any time, sensible or not."""
        rng = self.rng
        leader = self.leader()
        if leader is not None and leader.paused_until <= self.now:
            core = leader.core
            candidates = [name for name, node in self.nodes.items() if not node.gone]
            try:
                if rng.random() < 0.3:
                    target = rng.choice(candidates)
                    core.transfer_leadership(target, leader.now())
                    self.log(f"{leader.name} hands over to {target}")
                    if rng.random() < 0.3:
                        self.isolate_when_rivalled(leader, self.nodes[target])
                elif self.membership_changes and rng.random() < 0.6:
                    self._replace(leader)
                elif self.membership_changes:
                    self._toggle(leader, rng.choice(candidates))
            except RaftError as refused:
                self.log(f"{leader.name} refuses: {refused}")
            leader.settle()
        if self.faults:
            self.at(self.now + rng.expovariate(1 / 60), self.administer)

    def _toggle(self, leader: Node, name: str) -> None:
        """One step of adding (learner, voter) or removing, whatever was going on."""
        members = leader.core.members
        voters, learners = dict(members.voters), dict(members.learners)
        if name in learners:
            del learners[name]
            voters[name] = ""
        elif name not in voters:
            learners[name] = ""
        elif len(voters) > 2:
            del voters[name]
        self._change(leader, voters, learners)

    def _purge(self, leader: Node, kept: set[str]) -> None:
        members = leader.core.members
        voters, learners = dict(members.voters), dict(members.learners)
        strangers = [name for name in voters if name not in kept]
        if strangers and leader.core.role is Role.LEADER:
            del voters[strangers[0]]
            try:
                self._change(leader, voters, learners)
            except RaftError as refused:
                self.log(f"{leader.name} refuses: {refused}")
            leader.settle()
            self.at(self.now + 5, leader.guard(self._purge, leader, kept))

    def _replace(self, leader: Node) -> None:
        """The next step of putting a new node in the place of an old one; the leader may be the old one."""
        members = leader.core.members
        voters, learners = dict(members.voters), dict(members.learners)
        if self._replacing is None:
            old = self.rng.choice(list(voters))
            new = next((n for n in self.nodes if n not in members.all() and not self.nodes[n].gone), None)
            self._replacing = (old, new if new is not None else self._begin_fresh())
        old, new = self._replacing
        if new not in voters and new not in learners:
            learners[new] = ""
        elif new in learners:
            del learners[new]
            voters[new] = ""
        elif old in voters and len(voters) > 2:
            del voters[old]
        else:
            # Whoever left may now be switched off; sometimes it is left running, and does not know.
            self._replacing = None
            self.replaced += 1
            left = old not in members.all() and self._is_committed(leader)
            if self.rng.random() < 0.5 and left and not self._was_added_again(leader, old):
                self.log(f"{old} is switched off for good")
                self.nodes[old].gone = True
                if self.nodes[old].alive:
                    self.nodes[old].crash()
            return
        self._change(leader, voters, learners)

    @staticmethod
    def _is_committed(leader: Node) -> bool:
        return leader.core.membership_index <= leader.core.commit_index

    def _was_added_again(self, leader: Node, name: str) -> bool:
        """By a newer leader, of which this one does not know yet."""
        newer = [node.core for node in self.nodes.values() if node.life and node.core.term > leader.core.term]
        return any(name in core.members.all() for core in newer)

    def _begin_fresh(self) -> str:
        name = self._add_fresh()
        self.restart(self.nodes[name])
        return name

    def _change(self, leader: Node, voters: dict[str, str], learners: dict[str, str]) -> None:
        leader.core.change_members(Members(voters, learners))
        self.log(f"{leader.name} changes members to {list(voters)} + {list(learners)}")

    # ------------------------------------------------------------------ the whole

    def run(self) -> None:
        """All of it. Raises Violation or AssertionError."""
        for node in list(self.nodes.values()):
            self.at(self.rng.uniform(0, 50), functools.partial(self.restart, node))
        self.at(60, self.client)
        if self.shape.duels:
            self.at(250, self.duel)
        else:
            self.at(250, self.fault)
            self.at(300, self.administer)
            if self.shape.closings:
                self.at(350, self.alarm)
            if self.shape.forged:
                self.at(250, self.forge)
        self.run_until(self.shape.duration_ms)
        self.heal()

    def heal(self) -> None:
        self.log("healing")
        self.faults = False
        self.loss = self.duplication = 0.0
        self.delay_ms = min(self.delay_ms, 2.0)
        self.disk_mean_ms = min(self.disk_mean_ms, 2.0)
        self.slow.clear()
        for _ in range(40):
            self.blocked.clear()
            for node in self.nodes.values():
                node.paused_until = 0.0
                self.restart(node)
            self.run_until(self.now + 2 * ELECTION_MS)
            leader = self.leader()
            if leader is None:
                continue
            self._proposed += 1
            leader.propose([b"%d:last" % self._proposed])
            leader.read()
            self.run_until(self.now + 2 * ELECTION_MS)
            if self.at_rest(leader):
                members = [self.nodes[name] for name in leader.core.members.all()]
                self.checks.at_the_end(members, leader)
                return
        state = {
            n.name: (n.core.role.value, n.core.term, n.core.commit_index, n.core.log.last_index)
            for n in self.nodes.values()
            if n.alive
        }
        raise Violation(f"the healed group does not come to rest: {state}")

    def at_rest(self, leader: Node) -> bool:
        if self.leader() is not leader:
            return False
        members = leader.core.members.all()
        return all(self.nodes[m].applied_index == leader.core.log.last_index for m in members) and bool(
            self.checks.acknowledged
        )


def run_seed(seed: int, shape: Shape = Shape()) -> Simulation:
    """Run one schedule; on failure the last events go to stderr."""
    simulation = Simulation(seed, shape)
    try:
        simulation.run()
    except Exception:
        print(f"seed {seed} failed; the last events:", *simulation.trace, sep="\n  ", file=sys.stderr)
        raise
    return simulation
