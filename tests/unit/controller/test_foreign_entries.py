"""Log entries that are not events of the controllers: from a peer, and in the log of the disk."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from batonmq.controller import events
from batonmq.raft.errors import NewerEntry
from batonmq.raft.messages import WIRE_VERSION, Append, AppendReply, Entry, Envelope, Heartbeat, Kind, encode
from batonmq.raft.state import HardState, Save
from tests.unit.controller.test_foreign_snapshots import Follower, registered

NEWER = {
    "version": msgspec.msgpack.encode([events.ENTRY_VERSION + 1, 5, []]),
    "event": msgspec.msgpack.encode([1, 5, [["later-invention", 1]]]),
}
FOREIGN = {"garbage": b"forged", "wrong field": msgspec.msgpack.encode([1, 5, [["scan", 7]]])}


@pytest.fixture
async def follower(tmp_path: Path) -> AsyncIterator[Follower]:
    follower = Follower(tmp_path / "raft")
    await follower.node.start()
    await follower.learn("a")
    yield follower
    await follower.node.stop()


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Lines that tell of trouble."""
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def append(follower: Follower, *data: bytes) -> Append:
    log = follower.node.core.log
    entries = [Entry(1, Kind.DATA, each) for each in data]
    return Append(1, log.last_index, log.last_term, log.last_index + len(data), entries)


@pytest.mark.parametrize("case", [*FOREIGN, *NEWER])
async def test_a_follower_refuses_an_entry_that_it_cannot_apply(
    follower: Follower, caplog: pytest.LogCaptureFixture, case: str
) -> None:
    last = follower.node.core.log.last_index
    for _ in range(5):
        follower.receive(append(follower, registered("b"), {**FOREIGN, **NEWER}[case]))
        await asyncio.sleep(0.01)
    assert follower.node.core.log.last_index == last == follower.node.applied_index
    (line,) = warnings(caplog)
    assert line.startswith("n1 sent raft g/n0 an entry, which is refused: "), line
    assert ("upgraded" in line) == (case in NEWER)
    assert AppendReply(1, last + 2) not in follower.ears.said
    await follower.learn("b")
    assert set(follower.machine.broker_sets) == {"a", "b"}


async def test_messages_beside_a_refused_entry_count(follower: Follower) -> None:
    before = len(follower.ears.said)
    follower.receive(append(follower, b"forged"), Heartbeat(1, 0, 7, 7))
    await asyncio.sleep(0.01)
    (answer,) = follower.ears.said[before:]
    assert getattr(answer, "round", None) == 7


async def test_an_entry_that_is_not_an_event_in_the_log_is_ignored_in_one_line(
    follower: Follower, caplog: pytest.LogCaptureFixture
) -> None:
    await write_to_log(follower, b"forged", b"forged again", b"forged", registered("b"))
    caplog.clear()
    again = Follower(follower.directory)
    await again.node.start()
    again.receive(Append(1, 5, 1, 5, []))
    await again.until_applied(5)
    assert set(again.machine.broker_sets) == {"a", "b"}
    (line,) = warnings(caplog)
    assert line.startswith("raft g/n0 ignores entry 2 of its log, as every node does: ")
    await again.node.stop()


@pytest.mark.parametrize("case", NEWER)
async def test_an_entry_of_a_newer_version_in_the_log_stops_the_node_in_one_line(
    follower: Follower, caplog: pytest.LogCaptureFixture, case: str
) -> None:
    await write_to_log(follower, NEWER[case])
    caplog.clear()
    again = Follower(follower.directory)
    failures: list[BaseException] = []
    again.node.on_failure = failures.append
    await again.node.start()
    again.receive(Append(1, 2, 1, 2, []))
    async with asyncio.timeout(5):
        while not failures:
            await asyncio.sleep(0.002)
    assert isinstance(failures[0], NewerEntry)
    assert "a" in again.machine.broker_sets
    (line,) = warnings(caplog)
    assert line.startswith("raft g/n0 stops itself: an entry of the controllers") and "upgraded" in line
    assert "Traceback" not in caplog.text
    await again.node.stop()


async def write_to_log(follower: Follower, *data: bytes) -> None:
    """Stop the node and put entries behind its log, as a node wrote them that did not look at them."""
    core = follower.node.core
    hard, first = HardState(core.term, core.voted_for, core.commit_index), core.log.last_index + 1
    await follower.node.stop()
    storage = Follower(follower.directory).node._storage
    storage.open()
    entries = [Entry(1, Kind.DATA, each) for each in data]
    storage.save(Save(hard, first, entries, None, first + len(data) - 1, 1, []))
    storage.close()


async def test_a_message_of_a_newer_version_is_named_in_one_line(
    follower: Follower, caplog: pytest.LogCaptureFixture
) -> None:
    newer = Envelope("g", "n1", "n0", [Heartbeat(1, 0, 7, 7)], version=WIRE_VERSION + 1)
    unreadable = msgspec.msgpack.encode(["g", "n1", "n0", [[99, 1, 2]], WIRE_VERSION + 1, 5])
    before = len(follower.ears.said)
    for payload in (encode(newer), unreadable) * 3:
        follower.node.receive("n1", payload)
    await asyncio.sleep(0.01)
    assert follower.ears.said[before:] == []
    (line,) = warnings(caplog)
    assert f"version {WIRE_VERSION + 1} of the Raft messages" in line and "upgrade this controller" in line


async def test_a_message_of_version_0_1_0_is_read(follower: Follower) -> None:
    """Its envelopes end with the messages."""
    before = len(follower.ears.said)
    heartbeat = msgspec.msgpack.encode(["g", "n1", "n0", [Heartbeat(1, 0, 7, 7)]])
    follower.node.receive("n1", heartbeat)
    await asyncio.sleep(0.01)
    assert len(follower.ears.said) == before + 1


async def test_entries_are_written_for_the_oldest_member(follower: Follower) -> None:
    node = follower.node
    assert node.common_entry_version == 1  # n2 has sent nothing
    beat = [Heartbeat(1, 0, 7, 7)]
    for sender, version in (("n1", 2), ("n2", 2), ("stranger", 1)):
        node.receive(sender, encode(Envelope("g", sender, "n0", list(beat), WIRE_VERSION, version)))
    assert node.common_entry_version == 2
    node.receive("n2", encode(Envelope("g", "n2", "n0", [], WIRE_VERSION, 1)))
    assert node.common_entry_version == 2  # a probe says nothing
    node.receive("n2", msgspec.msgpack.encode(["g", "n2", "n0", beat]))
    assert node.common_entry_version == 1
