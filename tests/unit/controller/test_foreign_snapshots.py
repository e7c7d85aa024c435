"""Snapshots whose contents are not controllers' state: from a peer, and on the disk."""

from __future__ import annotations

import asyncio
import logging
import random
import zlib
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from batonmq.controller import events
from batonmq.controller.machine import SNAPSHOT_VERSION, ControllerMachine
from batonmq.raft.config import RaftConfig
from batonmq.raft.disk import OsDisk
from batonmq.raft.errors import StorageCorrupt
from batonmq.raft.messages import (
    Append,
    Entry,
    Envelope,
    InstallReply,
    InstallSnapshot,
    Kind,
    Members,
    Message,
    Snapshot,
    SnapshotMeta,
    decode_envelope,
    encode,
)
from batonmq.raft.node import RaftNode
from batonmq.raft.storage import Storage
from batonmq.raft.worker import ThreadWorker

MEMBERS = Members({"n0": "h:1", "n1": "h:2", "n2": "h:3"})


def registered(name: str) -> bytes:
    return events.encode(7, (events.ApplyBrokerId("c", name, 1, "h:1;1"),))


def state(*broker_sets: list[object], version: int = SNAPSHOT_VERSION) -> bytes:
    return msgspec.msgpack.encode([version, 7, list(broker_sets)])


def broker_set(**changes: object) -> list[object]:
    """As a snapshot has it."""
    fields: dict[str, object] = {
        "cluster_name": "c",
        "broker_name": "s",
        "replicas": {1: ["h:1", "h:1;1"], 2: ["h:2", "h:2;1"]},
        "next_broker_id": 3,
        "sync_state_set": [1],
        "sync_state_set_epoch": 1,
        "master_id": 1,
        "master_epoch": 1,
        "live": {1: [7, 10_000, 1, 0, 0, 0, 0]},
    }
    return list((fields | changes).values())


UNREADABLE = {
    "nothing": (b"\xc0", "Expected `array`, got"),
    "garbage": (b"\xc1garbage", "MessagePack data is malformed"),
    "cut": (state(broker_set())[:-5], "Input data was truncated"),
    "another version": (state(broker_set(), version=2), "version 2, known is 1"),
    "twice": (state(broker_set(), broker_set()), "a broker set is there twice"),
    "wrong type": (state(broker_set(replicas="none")), "Expected `object`, got `str`"),
    "endless": (b"\x94\x01\x07\x90" + b"\x91" * 100_000, "recursion"),
    "more than there is": (b"\x93\x01\x07\xdd\xff\xff\xff\xff", "truncated"),
    "endless epoch": (state(broker_set(master_epoch=2**63)), "Expected `int` <= "),
    "in sync and unknown": (state(broker_set(sync_state_set=[1, 9])), "not registered"),
    "alive and unknown": (state(broker_set(live={9: [7, 1, 1, 0, 0, 0, 0]})), "not registered"),
    "set out of order": (state(broker_set(sync_state_set=[2, 1])), "ascending order"),
    "master not in sync": (state(broker_set(master_id=2)), "the master 2 is not in the SyncStateSet"),
    "text that is none": (state(broker_set(broker_name="ab")).replace(b"ab", b"\xff\xfe"), "can't decode"),
    "next id taken": (state(broker_set(next_broker_id=2)), "the next broker id 2"),
}


class Ears:
    """A transport that notes what the node says."""

    def __init__(self) -> None:
        self.said: list[Message] = []

    def send(self, peer_id: str, payload: bytes) -> None:
        self.said += decode_envelope(payload).messages

    def set_peers(self, addresses: dict[str, str]) -> None: ...


class Follower:
    """The node n0, which receives messages in the name of n1, the leader of term 1."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.machine = ControllerMachine()
        self.ears = Ears()
        self.node = RaftNode(
            "g",
            "n0",
            MEMBERS,
            self.machine,
            Storage(OsDisk(directory), "g", "n0", segment_bytes=1 << 20),
            self.ears,
            ThreadWorker("raft-n0"),
            config=RaftConfig(election_timeout_ms=60_000),
            rng=random.Random(1),
        )

    def receive(self, *messages: Message) -> None:
        self.node.receive("n1", encode(Envelope("g", "n1", "n0", list(messages))))

    async def learn(self, name: str) -> None:
        """By an entry that is committed."""
        last = self.node.core.log.last_index
        entry = Entry(1, Kind.DATA, registered(name))
        self.receive(Append(1, last, self.node.core.log.last_term, last + 1, [entry]))
        await self.until_applied(last + 1)

    async def until_applied(self, index: int) -> None:
        async with asyncio.timeout(5):
            while self.node.applied_index < index or self.node._persistence.busy:
                await asyncio.sleep(0.002)

    def snapshots(self) -> list[str]:
        return [path.name for path in self.directory.glob("snapshot-*")]


def forged(data: bytes, index: int = 50) -> InstallSnapshot:
    return InstallSnapshot(1, SnapshotMeta(index, 1, MEMBERS), len(data), zlib.crc32(data), 0, data)


@pytest.fixture
async def follower(tmp_path: Path) -> AsyncIterator[Follower]:
    follower = Follower(tmp_path / "raft")
    await follower.node.start()
    await follower.learn("a")
    yield follower
    await follower.node.stop()


@pytest.mark.parametrize("case", UNREADABLE)
async def test_what_is_not_a_state_is_refused_and_the_node_continues(
    follower: Follower, caplog: pytest.LogCaptureFixture, case: str
) -> None:
    data, why = UNREADABLE[case]
    before = follower.machine.snapshot()
    for _ in range(5):
        follower.receive(forged(data))
        await asyncio.sleep(0.01)
    follower.receive(forged(data, 51), forged(data, 52))
    await asyncio.sleep(0.01)
    assert follower.node._running, caplog.text
    assert follower.machine.snapshot() == before
    assert follower.snapshots() == []
    lines = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert len(lines) == 1 and lines[0].startswith("n1 sent raft g/n0 a snapshot, which is refused: ")
    assert why in lines[0] and "Traceback" not in caplog.text
    assert InstallReply(1, 50, 0, refused=True) in follower.ears.said
    await follower.learn("b")
    assert set(follower.machine.broker_sets) == {"a", "b"}
    await follower.node.stop()
    again = Follower(follower.directory)
    await again.node.start()
    again.receive(Append(1, 2, 1, 2, []))
    await again.until_applied(2)
    assert set(again.machine.broker_sets) == {"a", "b"}
    await again.node.stop()


async def test_a_state_is_taken_and_there_after_a_restart(follower: Follower) -> None:
    """Else the refusals above would prove nothing."""
    other = ControllerMachine()
    other.apply(1, registered("z"))
    follower.receive(forged(other.snapshot()))
    await follower.until_applied(50)
    assert follower.machine.snapshot() == other.snapshot()
    assert len(follower.snapshots()) == 1
    await follower.node.stop()
    again = Follower(follower.directory)
    await again.node.start()
    assert again.machine.snapshot() == other.snapshot() and again.node.applied_index == 50
    await again.node.stop()


async def test_entries_that_came_with_it_are_not_applied_on_top(follower: Follower) -> None:
    other = ControllerMachine()
    other.apply(1, registered("z"))
    log = follower.node.core.log
    entry = Entry(1, Kind.DATA, registered("b"))
    append = Append(1, log.last_index, log.last_term, log.last_index + 1, [entry])
    follower.receive(append, forged(other.snapshot()))
    await follower.until_applied(50)
    assert follower.machine.snapshot() == other.snapshot() and follower.node.applied_index == 50


@pytest.mark.parametrize("case", UNREADABLE)
async def test_a_file_that_cannot_be_restored_is_named(tmp_path: Path, case: str) -> None:
    data, why = UNREADABLE[case]
    storage = Storage(OsDisk(tmp_path), "g", "n0", segment_bytes=1 << 20)
    storage.open()
    storage.write_snapshot(Snapshot(SnapshotMeta(50, 1, MEMBERS), data))
    storage.close()
    (path,) = tmp_path.glob("snapshot-*")
    follower = Follower(tmp_path)
    with pytest.raises(StorageCorrupt) as refused:
        await follower.node.start()
    said = str(refused.value)
    assert said.startswith(f"{path}: ") and why in said and "restore this node from its peers" in said
    assert "\n" not in said
    await follower.node.stop()


async def test_a_file_that_holds_something_else_is_named(tmp_path: Path) -> None:
    path = tmp_path / "snapshot-00000000000000000050-00000000000000000001.raft"
    body = msgspec.msgpack.encode(["of", "another", "version"])
    path.write_bytes(b"BMQRSNP1" + len(body).to_bytes(8, "big") + zlib.crc32(body).to_bytes(4, "big") + body)
    with pytest.raises(StorageCorrupt, match=f"^{path}: not a snapshot of this version: "):
        await Follower(tmp_path).node.start()
