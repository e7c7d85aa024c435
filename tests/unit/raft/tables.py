"""Runs scripts against a group of `RaftCore`: commands, `----`, what was sent, saved and applied.

A script is a list of commands, one a line, `#` starts a comment:

    group n0 n1 n2 [key=value …]      cores without a past; keys are those of RaftConfig
    join m0                           one more core that knows of no membership yet
    timeout n0                        its deadline has come
    wait 50                           deadlines come for so long (ms), but no message and no save is done
    run 2500                          time passes and all get through; heartbeats are not shown
    save n0                           its disk makes durable what waits
    deliver [from=n0] [to=n1] [n=1]   messages under way arrive, in order
    drop [from=n0] [to=n1]            they are lost
    cut n0 [n1] / heal                n0's messages (to and from n1) are lost from now on / no more
    settle                            save and deliver until nothing is under way
    elect n0                          timeout, then settle, showing only who becomes what
    propose n0 a b                    each word is a proposal
    read n0                           a read barrier
    members n0 voters=n0,n1 [learners=m0]
    transfer n0 n1
    compact n0                        take a snapshot of all that is applied
    lost n1 n0                        n1 sees that n0's process is gone
    crash n0                          forget all that was not saved, start again
    status [n0]                       role, term, commit, log (terms of the entries)

With REWRITE_TABLES=1 the actual output is written into the file; read the diff.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec
from tests.simulation.memory_disk import MemoryDisk

from batonmq.raft.config import RaftConfig
from batonmq.raft.core import RaftCore
from batonmq.raft.errors import RaftError
from batonmq.raft.messages import Entry, Kind, Members, Message, Snapshot, SnapshotMeta
from batonmq.raft.state import Role
from batonmq.raft.storage import Storage


class Script:
    def __init__(self) -> None:
        self.cores: dict[str, RaftCore] = {}
        self.storages: dict[str, Storage] = {}
        self.disks: dict[str, MemoryDisk] = {}
        self.applied: dict[str, list[str]] = {}
        self.bootstrap: dict[str, Members] = {}
        self.config = RaftConfig()
        self.under_way: list[tuple[str, str, Message]] = []
        self.cut: list[set[str]] = []
        self.now_ms = 0
        self.reads = 0
        self.lines: list[str] = []
        self.shown: dict[str, tuple[Role, int]] = {}

    def run(self, text: str) -> str:
        self.lines = []
        for line in text.splitlines():
            words = line.split("#", 1)[0].split()
            if not words:
                continue
            args = [word for word in words[1:] if "=" not in word]
            options = dict(word.split("=", 1) for word in words[1:] if "=" in word)
            command: Callable[..., None] = getattr(self, f"do_{words[0]}")
            try:
                command(*args, **options)
            except RaftError as error:
                self.lines.append(f"{args[0]} refuses: {type(error).__name__}: {error}")
            self.collect()
        return "\n".join(self.lines)

    # ------------------------------------------------------------------ commands

    def do_group(self, *names: str, **options: str) -> None:
        types = RaftConfig.__dataclass_fields__
        values: dict[str, Any] = {
            key: value == "true" if types[key].type == "bool" else int(value)
            for key, value in options.items()
        }
        # Commits are announced at once where a table does not say otherwise: it is then all about messages.
        self.config = RaftConfig(**{"commit_notice_ms": 0, **values})
        for name in names:
            self.start(name, Members(dict.fromkeys(names, "")))

    def do_join(self, name: str) -> None:
        self.start(name, Members({}))

    def start(self, name: str, members: Members) -> None:
        self.bootstrap[name] = members
        disk = self.disks.setdefault(name, MemoryDisk(random.Random(0)))
        storage = self.storages[name] = Storage(disk, "g", name, segment_bytes=1 << 20)
        found = storage.open()
        self.applied[name] = found.snapshot.data.decode().split() if found.snapshot else []
        self.cores[name] = RaftCore(
            name,
            self.config,
            members=members,
            rng=random.Random(name),
            now_ms=self.now_ms,
            hard_state=found.hard_state,
            log=found.log,
            snapshot=found.snapshot.meta if found.snapshot else None,
        )
        self.shown[name] = (Role.FOLLOWER, found.hard_state.term)

    def do_timeout(self, name: str) -> None:
        core = self.cores[name]
        self.now_ms = max(self.now_ms, core.next_deadline_ms())
        core.tick(self.now_ms)

    def do_wait(self, milliseconds: str) -> None:
        self.pass_time(int(milliseconds), lambda: None)

    def do_run(self, milliseconds: str) -> None:
        before = self.lines
        self.lines = []
        self.do_settle()
        self.pass_time(int(milliseconds), self.do_settle)
        self.lines = before + [line for line in self.lines if ": Heartbeat" not in line]

    def pass_time(self, milliseconds: int, then: Callable[[], None]) -> None:
        end = self.now_ms + milliseconds
        while True:
            deadline, name = min((c.next_deadline_ms(), n) for n, c in self.cores.items())
            if deadline > end:
                break
            self.now_ms = max(self.now_ms, deadline)
            self.cores[name].tick(self.now_ms)
            self.collect()
            then()
        self.now_ms = end

    def do_save(self, name: str) -> None:
        core = self.cores[name]
        save = core.take_save()
        if save is None:
            self.lines.append(f"{name} has nothing to save")
            return
        self.storages[name].save(save)
        hard = save.hard_state
        text = f"{name} saves term={hard.term} vote={hard.voted_for}"
        if save.snapshot is not None:
            text += f" snapshot={save.snapshot.meta.index}"
        if save.entries:
            text += f" from {save.first_index}: {_entries(save.entries)}"
        self.lines.append(text)
        self.post(name, core.saved(save, self.now_ms))

    def selected(self, sender: str | None, target: str | None) -> list[tuple[str, str, Message]]:
        return [m for m in self.under_way if sender in (None, m[0]) and target in (None, m[1])]

    def do_deliver(self, *, n: str | None = None, to: str | None = None, **options: str) -> None:
        chosen = self.selected(options.get("from"), to)
        for sender, target, message in chosen[: int(n) if n else None]:
            self.under_way.remove((sender, target, message))
            self.lines.append(f"{sender} -> {target}: {_message(message)}")
            self.cores[target].step(sender, message, self.now_ms)

    def do_drop(self, *, to: str | None = None, **options: str) -> None:
        for chosen in self.selected(options.get("from"), to):
            self.under_way.remove(chosen)

    def do_cut(self, *names: str) -> None:
        self.cut.append(set(names))
        self.under_way = [m for m in self.under_way if not self.is_cut(m[0], m[1])]

    def is_cut(self, sender: str, target: str) -> bool:
        return any(names <= {sender, target} for names in self.cut)

    def do_heal(self) -> None:
        self.cut.clear()

    def do_settle(self) -> None:
        for _ in range(100):
            self.collect()
            for name, core in self.cores.items():
                if core.outbox.has_save():
                    self.do_save(name)
            self.collect()
            if self.under_way:
                self.do_deliver()
            elif not any(core.outbox.has_save() for core in self.cores.values()):
                return
        raise AssertionError("the group does not settle")

    def do_elect(self, name: str) -> None:
        before = self.lines
        self.lines = []
        self.do_timeout(name)
        self.do_settle()
        self.lines = before + [line for line in self.lines if " is " in line]

    def do_propose(self, name: str, *payloads: str) -> None:
        self.cores[name].propose([payload.encode() for payload in payloads])

    def do_read(self, name: str) -> None:
        self.reads += 1
        self.cores[name].read(self.reads, self.now_ms)

    def do_members(self, name: str, *, voters: str, learners: str = "") -> None:
        members = Members(
            dict.fromkeys(voters.split(","), ""), dict.fromkeys(learners.split(","), "") if learners else {}
        )
        self.cores[name].change_members(members)

    def do_transfer(self, name: str, target: str) -> None:
        self.cores[name].transfer_leadership(target, self.now_ms)

    def do_lost(self, name: str, peer: str) -> None:
        self.cores[name].peer_lost(peer, self.now_ms)

    def do_compact(self, name: str) -> None:
        core = self.cores[name]
        snapshot = self.snapshot(name)
        self.storages[name].write_snapshot(snapshot)
        core.compacted(snapshot.meta)
        self.storages[name].drop_before(snapshot.meta.index)

    def snapshot(self, name: str) -> Snapshot:
        core = self.cores[name]
        index = core.commit_index
        term = core.log.term(index)
        assert term is not None
        return Snapshot(
            SnapshotMeta(index, term, core.memberships.members_at(index)),
            " ".join(self.applied[name]).encode(),
        )

    def do_crash(self, name: str) -> None:
        self.disks[name].lose_power()
        self.under_way = [m for m in self.under_way if name not in m[:2]]
        self.start(name, self.bootstrap[name])

    def do_status(self, *names: str) -> None:
        self.collect()
        for name in names or tuple(self.cores):
            core = self.cores[name]
            log = core.log
            terms = " ".join(str(log.term(i)) for i in range(log.first_index, log.last_index + 1))
            base = f"[..{log.base_index}] " if log.base_index else ""
            voters = ",".join(core.members.voters)
            learners = f" learners={','.join(core.members.learners)}" if core.members.learners else ""
            role = f"{name} {core.role.value} term={core.term} leader={core.leader_id}"
            self.lines.append(
                f"{role} commit={core.commit_index} voters={voters}{learners} log={base}{terms} "
                f"applied={' '.join(self.applied[name])}"
            )

    # ------------------------------------------------------------------ what comes out

    def post(self, sender: str, messages: list[tuple[str, Message]]) -> None:
        for target, message in messages:
            if target in self.cores and not self.is_cut(sender, target):
                # Through the wire's encoding, as each node has its own copy.
                copy = msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=Message)
                self.under_way.append((sender, target, copy))

    def collect(self) -> None:
        for name, core in self.cores.items():
            role = (core.role, core.term)
            if role != self.shown[name]:
                self.shown[name] = role
                self.lines.append(f"{name} is {role[0].value} in term {role[1]}")
            ready = core.ready(self.now_ms)
            self.post(name, ready.messages)
            payloads = [entry.data.decode() for entry in ready.entries if entry.kind == Kind.DATA]
            if payloads:
                self.applied[name] += payloads
                self.lines.append(f"{name} applies {' '.join(payloads)}")
            if ready.offer is not None:
                self.applied[name] = ready.offer.snapshot.data.decode().split()
                self.lines.append(f"{name} restores the snapshot at {ready.offer.snapshot.meta.index}")
                core.install(ready.offer, self.now_ms)
            for number, index in ready.reads:
                self.lines.append(f"{name} read {number}: {'refused' if index is None else f'at {index}'}")
            if ready.needs_snapshot:
                snapshot = self.storages[name].load_snapshot()
                assert snapshot is not None
                core.snapshot_loaded(snapshot)


def _entries(entries: list[Entry]) -> str:
    words = []
    for entry in entries:
        kind = Kind(entry.kind)
        words.append(f"{entry.term}:{entry.data.decode() if kind is Kind.DATA else kind.name.lower()}")
    return " ".join(words)


def _message(message: Message) -> str:
    parts = [type(message).__name__]
    for field in message.__struct_fields__:
        value = getattr(message, field)
        if field == "sent_ms" or (
            field in ("rejected", "refused", "transfer", "hint_index", "hint_term", "promise_ms", "asked_by")
            and not value
        ):
            continue
        if field == "entries":
            value = f"[{_entries(value)}]"
        elif field == "meta":
            value = f"{value.index}@{value.term}"
        elif field in ("checksum",):
            continue
        elif isinstance(value, bytes):
            value = f"{len(value)}B"
        parts.append(f"{field}={value}")
    return " ".join(parts)
