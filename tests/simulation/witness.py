"""What must hold at every moment of a story, and whether it does.

Two kinds of *facts* are noted down: a message was acknowledged, a reader has seen a message. The group's
promise about a fact does not wait for the second fault that would show its breach: the controllers may elect
any member of the SyncStateSet at any time, so each of them must hold all facts all the time, with SYNC_FLUSH
on its disk. That is looked at while the story goes on, in running programs as on the disks of dead ones.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from batonmq.ha.role import HARole
from batonmq.store.mapped import file_name
from tests.simulation.cluster import BROKER_NAME, COMMIT_LOG_FILE, Node, SimCluster
from tests.simulation.story import TOPIC, Shape, Story, Violation

MOST_EPOCHS = 8
"""States of later master epochs count as those of this one."""


class Fact(NamedTuple):
    """A message that must never be lost, moved or replaced from here on."""

    what: str
    key: str
    queue_id: int
    queue_offset: int
    physical_offset: int


class Witness:
    """Notes down facts and looks at the cluster; every method that looks raises `Violation`."""

    def __init__(self, cluster: SimCluster, story: Story, shape: Shape) -> None:
        self._cluster, self._story, self._shape = cluster, story, shape
        self._facts: list[Fact] = []
        self._acked_at: dict[tuple[int, int], str] = {}
        self._ends: dict[int, int] = {}
        """Queue id -> highest acknowledged offset."""
        self._ids: dict[int, str] = {}
        """Broker id -> the disk it was given to."""
        self._decided: dict[int, int] = {}
        """Master epoch -> broker id, as the controllers decided it."""
        self._members: tuple[int, tuple[int, ...]] = (-1, ())
        """Index in the controllers' log, and the SyncStateSet there."""
        self._held: dict[str, tuple[object, int]] = {}
        """Node -> the state of its log, and how many facts were found in it then."""
        self._compared: dict[tuple[str, str], int] = {}
        self.newest_epoch = 0

    # -- facts --------------------------------------------------------------------------------------------

    def ends(self) -> dict[int, int]:
        """To be asked before a send, for `acked`."""
        return dict(self._ends)

    def acked(self, key: str, queue_id: int, queue_offset: int, physical: int, ends: dict[int, int]) -> None:
        """A send was acknowledged that began when the queues' acknowledged ends were `ends`."""
        other = self._acked_at.setdefault((queue_id, queue_offset), key)
        if other != key:
            raise Violation(f"{key} and {other} were both acknowledged at {queue_id}:{queue_offset}")
        if queue_offset <= ends.get(queue_id, -1):
            raise Violation(
                f"{key} was acknowledged at {queue_id}:{queue_offset}, in front of messages "
                f"acknowledged before it was sent (up to {ends[queue_id]})"
            )
        self._ends[queue_id] = max(self._ends.get(queue_id, -1), queue_offset)
        self._story.acked[key] = (queue_id, queue_offset)
        self._facts.append(Fact("acknowledged", key, queue_id, queue_offset, physical))

    def seen(self, key: str, queue_id: int, queue_offset: int, physical: int) -> None:
        """A reader got a message."""
        other = self._story.seen.setdefault((queue_id, queue_offset), key)
        if other != key:
            raise Violation(f"{other} was read at {queue_id}:{queue_offset}, where {key} is now")
        self._facts.append(Fact("read", key, queue_id, queue_offset, physical))

    # -- at every moment ----------------------------------------------------------------------------------

    def look(self) -> None:
        """All that must hold always."""
        self._check_masters()
        self._check_links()
        self._check_ids()
        self._check_controllers()
        self._check_members()
        self.check_logs()
        self._note_state()

    def _note_state(self) -> None:
        """Add the present state to those that the story has gone through."""
        members, roles = 0, []
        for node in self._cluster.brokers:
            if node.broker_id in self._members[1]:
                members |= 1 << node.index
            if not node.up:
                roles.append("down")
            elif node.broker is None or node.broker_id is None:
                roles.append("starting")
            else:
                behind = min(2, self.newest_epoch - node.broker.role.epoch)
                linked = node.broker.replication.following
                roles.append(f"{node.broker.replication.role.name}-{behind}{'+' * linked}")
        self._story.states.add((min(self.newest_epoch, MOST_EPOCHS), members, " ".join(roles)))

    def _check_masters(self) -> None:
        for node in self._cluster.masters():
            epoch = node.broker.role.epoch
            self.newest_epoch = max(self.newest_epoch, epoch)
            known = self._story.masters.setdefault(epoch, node.name)
            if known != node.name:
                raise Violation(f"epoch {epoch} has two masters: {known} and {node.name}")

    def _check_links(self) -> None:
        """Who is not master serves no slaves, and who is follows nobody: links end with the role."""
        for node in self._cluster.brokers:
            if node.up and node.broker is not None:
                ha = node.broker.replication
                serves = [link for link in ha.listener.links if not link.closed]
                if serves and ha.role is not HARole.MASTER:
                    raise Violation(f"{node.name} is {ha.role.name}, and has slaves at {serves[0].peer}")
                if ha.role is not HARole.SLAVE and ha.link is not None and not ha.link.closed:
                    raise Violation(f"{node.name} is {ha.role.name}, and follows {ha.link.peer}")

    def _check_ids(self) -> None:
        for node in self._cluster.brokers:
            broker_id = node.broker_id
            if broker_id is not None:
                disk = f"{node.name}, disk {node.disks}"
                known = self._ids.setdefault(broker_id, disk)
                if known != disk:
                    raise Violation(f"broker id {broker_id} was given to two replicas: {known} and {disk}")

    def _check_controllers(self) -> None:
        for node in self._cluster.controllers:
            raft = getattr(node.service, "node", None)
            if raft is None:
                continue
            broker_set = node.service.machine.broker_sets.get(BROKER_NAME)
            if broker_set is None:
                continue
            if raft.applied_index > self._members[0]:
                self._members = (raft.applied_index, broker_set.sync_state_set)
            if broker_set.master_id is not None:
                known = self._decided.setdefault(broker_set.master_epoch, broker_set.master_id)
                if known != broker_set.master_id:
                    raise Violation(
                        f"controllers gave epoch {broker_set.master_epoch} to two masters: broker ids "
                        f"{known} and {broker_set.master_id}"
                    )

    def _check_members(self) -> None:
        nodes = {node.broker_id: node for node in self._cluster.brokers}
        for broker_id in self._members[1]:
            node = nodes.get(broker_id)
            if node is not None:
                self._check_member(node)

    def can_lose(self, node: Node) -> bool:
        """Whether the disk of a dead replica may go for ever: no controller takes the replica for alive, so
        none elects it any more, and another one that has everything may be elected."""
        self._check_controllers()
        for controller in self._cluster.controllers:
            if getattr(controller.service, "node", None) is not None:
                broker_set = controller.service.machine.broker_sets.get(BROKER_NAME)
                if broker_set is None or node.broker_id in broker_set.live:
                    return False
        others = [each for each in self._cluster.brokers if each is not node]
        holders = [each for each in others if each.broker_id in self._members[1]]
        for each in holders:
            self._check_member(each)
        return bool(holders) and not node.up

    def _check_member(self, node: Node) -> None:
        """All facts are in this log. Only new ones are looked for, unless the log may have changed."""
        # What is behind the end of a log that was cut is overwritten: nothing else has to be read.
        store = node.broker.store if node.up and node.broker is not None else None
        state = (node.life, node.up, None if store is None else store._log.truncations)
        before, count = self._held.get(node.name, (None, 0))
        if before != state:
            count = 0
        if count == len(self._facts):
            return
        files: dict[int, tuple[bytes, bytes]] = {}
        for fact in self._facts[count:]:
            at = fact.physical_offset % COMMIT_LOG_FILE
            base = fact.physical_offset - at
            if base not in files:
                files[base] = self._read(node.directory / "commitlog" / file_name(base))
            data, durable = files[base]
            if not _is_at(fact.key, data, at):
                raise Violation(f"{fact.what} {fact.key} is lost: not at {self._place(fact, node)}")
            if self._shape.sync_flush and not _is_at(fact.key, durable, at):
                raise Violation(f"{fact.what} {fact.key} is not on disk at {self._place(fact, node)}")
        self._held[node.name] = (state, len(self._facts))

    def _place(self, fact: Fact, node: Node) -> str:
        where = f"{fact.queue_id}:{fact.queue_offset}, byte {fact.physical_offset} of {node.name}"
        return f"{where} (broker id {node.broker_id}, of the SyncStateSet {self._members[1]})"

    def _read(self, path: Path) -> tuple[bytes, bytes]:
        """A file as programs see it, and as a power cut would leave it."""
        try:
            return path.read_bytes(), self._cluster.world.synced.get(path.stat().st_ino, b"")
        except FileNotFoundError:
            return b"", b""

    def check_logs(self, *, whole: bool = False) -> None:
        """Logs are equal below both confirm offsets; only what is new is compared, unless `whole`."""
        nodes = [node for node in self._cluster.brokers if node.up and node.broker is not None]
        for i, a in enumerate(nodes):
            for b in nodes[i + 1 :]:
                one, other = a.broker.store, b.broker.store
                pair = (a.life, b.life)
                begin = max(one.min_offset, other.min_offset, 0 if whole else self._compared.get(pair, 0))
                end = min(one.confirm_offset, other.confirm_offset, one.max_offset, other.max_offset)
                at = _first_difference(one, other, begin, end)
                if at is not None:
                    raise Violation(
                        f"{a.name} and {b.name} differ at {at}, below both confirm offsets ({end})"
                    )
                self._compared[pair] = end

    # -- at the end ---------------------------------------------------------------------------------------

    def check_end(self, master: Node) -> None:
        """All facts are where they were said to be, for whoever asks `master` by queue and offset."""
        self.look()
        self.check_logs(whole=True)
        seen, store = self._story.seen, master.broker.store
        for fact in self._facts:
            got = store.get(TOPIC, fact.queue_id, fact.queue_offset, 1, 1 << 20)
            data = b"".join(bytes(part) for part in got.buffers)
            if _keys(fact.key) not in data:
                found = "nothing" if not data else "another message"
                raise Violation(
                    f"{fact.what} {fact.key} is lost: {master.name} has {found} at "
                    f"{fact.queue_id}:{fact.queue_offset}"
                )
            if seen.get((fact.queue_id, fact.queue_offset)) != fact.key:
                raise Violation(
                    f"acknowledged {fact.key} at {fact.queue_id}:{fact.queue_offset} was not read"
                )


def _keys(key: str) -> bytes:
    """The property as it is in a record."""
    return f"KEYS\x01{key}\x02".encode()


def _is_at(key: str, data: bytes, at: int) -> bool:
    size = int.from_bytes(data[at : at + 4], "big")
    return _keys(key) in data[at : at + size]


def _first_difference(one: Any, other: Any, begin: int, end: int) -> int | None:
    at = begin
    while at < end:
        a, b = one.read(at, end - at), other.read(at, end - at)
        size = min(len(a), len(b))
        if size == 0:
            return at
        if a[:size] != b[:size]:
            return next(at + i for i in range(size) if a[i] != b[i])
        at += size
    return None
