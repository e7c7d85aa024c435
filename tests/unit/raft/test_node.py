"""The asyncio shell, over real sockets and real files: small groups in one process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import shutil
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from batonmq.net.client import RemotingClient
from batonmq.net.dispatch import Dispatcher
from batonmq.net.server import RemotingServer
from batonmq.raft.config import RaftConfig
from batonmq.raft.disk import OsDisk
from batonmq.raft.errors import (
    MembershipRefused,
    NodeStopped,
    NotLeader,
    ProposalTooLarge,
    ProposalUncertain,
    RaftError,
    ReadUnavailable,
    ReplicaLagging,
    StorageCorrupt,
)
from batonmq.raft.messages import Append, Heartbeat, Members, decode_envelope, encode
from batonmq.raft.node import RaftNode
from batonmq.raft.state import Role
from batonmq.raft.storage import Storage
from batonmq.raft.transport import RemotingTransport, SharedSecret
from batonmq.raft.worker import Done, Job, ThreadWorker

CONFIG = RaftConfig(
    election_timeout_ms=200, trailing_entries=5, max_proposal_bytes=10_000, read_timeout_ms=800
)


class Words:
    """A state machine that keeps the entries it applied, and answers their number."""

    def __init__(self) -> None:
        self.words: list[bytes] = []

    entry_version = 1

    def refusal(self, data: bytes) -> str | None:
        return None

    def apply(self, index: int, data: bytes) -> int:
        self.words.append(data)
        return len(self.words)

    def snapshot(self) -> bytes:
        return b" ".join(self.words)

    def restore(self, data: bytes) -> None:
        self.words = data.split()


class Peer:
    """One process's worth: a port, a client, a node."""

    def __init__(self, group: Group, name: str, port: int = 0) -> None:
        self.group = group
        self.name = name
        self.dispatcher = Dispatcher()
        self.server = RemotingServer(self.dispatcher, "127.0.0.1", port)
        self.client = RemotingClient(connect_timeout_ms=500)
        self.machine = Words()
        self.node: RaftNode
        self.transport: RemotingTransport

    async def join(
        self, members: Members, *, group: str = "g", secret: str = "s", config: RaftConfig = CONFIG
    ) -> None:
        self.transport = RemotingTransport(
            group, self.name, self.client, self.dispatcher, SharedSecret(secret)
        )
        storage = Storage(
            OsDisk(self.group.directory / self.name), group, self.name, segment_bytes=config.segment_bytes
        )
        self.node = RaftNode(
            group,
            self.name,
            members,
            self.machine,
            storage,
            self.transport,
            ThreadWorker(f"raft-{self.name}"),
            config=config,
            rng=random.Random(self.name),
        )
        self.transport.bind(self.node.receive)
        await self.node.start()

    async def leave(self) -> None:
        await self.node.stop()
        await self.transport.close()
        await self.client.close()
        await self.server.stop()


class Group:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.peers: dict[str, Peer] = {}
        self.members = Members({})

    async def open_port(self, name: str, port: int = 0) -> Peer:
        peer = self.peers[name] = Peer(self, name, port)
        await peer.server.start()
        return peer

    async def begin(self, *names: str, config: RaftConfig = CONFIG) -> None:
        for name in names:
            await self.open_port(name)
        self.members = Members({name: f"127.0.0.1:{self.peers[name].server.port}" for name in names})
        for name in names:
            await self.peers[name].join(self.members, config=config)

    async def restart(self, name: str, config: RaftConfig = CONFIG) -> Peer:
        port = self.peers[name].server.port
        peer = await self.open_port(name, port)
        await peer.join(self.members, config=config)
        return peer

    async def leave(self, name: str) -> Peer:
        peer = self.peers[name]
        await peer.leave()
        return peer

    def running(self) -> list[Peer]:
        return [peer for peer in self.peers.values() if peer.node._running]

    async def leader(self, *, but: str = "") -> Peer:
        await until(lambda: any(p.node.role is Role.LEADER and p.name != but for p in self.running()))
        return next(p for p in self.running() if p.node.role is Role.LEADER and p.name != but)


async def until(condition: Callable[[], bool], seconds: float = 8) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)


@pytest.fixture
async def group(tmp_path: Path) -> AsyncIterator[Group]:
    group = Group(tmp_path)
    yield group
    for peer in group.peers.values():
        with contextlib.suppress(AttributeError):
            await peer.leave()


async def test_one_node_serves_at_once_and_remembers(group: Group) -> None:
    await group.begin("n0")
    peer = await group.leader()
    assert await asyncio.gather(*(peer.node.propose(b"w%d" % i) for i in range(50))) == list(range(1, 51))
    await peer.node.read_index()
    await group.leave("n0")
    again = await group.restart("n0")
    await group.leader()
    await again.node.read_index()
    assert again.machine.words == [b"w%d" % i for i in range(50)]


async def test_the_result_of_a_proposal_whose_caller_gave_up_is_passed_on(group: Group) -> None:
    await group.begin("n0")
    node = (await group.leader()).node
    unclaimed: list[object] = []
    node.on_unclaimed = unclaimed.append
    first, second = (asyncio.ensure_future(node.propose(word)) for word in (b"first", b"second"))
    await asyncio.sleep(0)
    first.cancel()
    assert (await second, unclaimed) == (2, [1])


async def test_numbers_of_reads_rise_over_a_restart(group: Group) -> None:
    """Otherwise a leader's late answer to an old read could pass for the answer to a new one."""
    await group.begin("n0")
    before = (await group.leader()).node
    await before.read_index()
    await group.leave("n0")
    after = (await group.restart("n0")).node
    assert after._reads.barriers.number > before._reads.barriers.number


async def test_three_nodes_agree_and_survive_their_leader(group: Group) -> None:
    await group.begin("n0", "n1", "n2")
    first = await group.leader()
    await asyncio.gather(*(first.node.propose(b"a%d" % i) for i in range(20)))
    follower = next(p for p in group.running() if p is not first)
    with pytest.raises(NotLeader) as refused:
        await follower.node.propose(b"no")
    assert refused.value.leader_id == first.name
    await follower.node.read_index()  # asks the leader
    assert len(follower.machine.words) == 20

    await group.leave(first.name)
    second = await group.leader()
    await second.node.propose(b"after")
    back = await group.restart(first.name)
    await until(lambda: len(back.machine.words) == 21)
    assert back.machine.words == second.machine.words


@pytest.mark.parametrize("max_read_lag", [10, 30])
async def test_a_follower_that_is_too_far_behind_sends_its_readers_away(
    group: Group, max_read_lag: int
) -> None:
    """It cannot know how far the others are, since their entries do not reach it; the leader tells."""
    config = RaftConfig(election_timeout_ms=200, read_timeout_ms=500, max_read_lag=max_read_lag)
    await group.begin("n0", "n1", "n2", config=config)
    leader = await group.leader()
    await leader.node.propose(b"x")
    late = next(p for p in group.running() if p is not leader)
    await late.node.read_index()

    def without_entries(sender: str, payload: bytes | memoryview) -> None:
        envelope = decode_envelope(payload)
        envelope.messages = [m for m in envelope.messages if not isinstance(m, Append)]
        for message in envelope.messages:
            if isinstance(message, Heartbeat):
                message.commit = 0
        late.node.receive(sender, encode(envelope))

    late.transport.bind(without_entries)
    for number in range(20):
        await leader.node.propose(b"%d" % number)
    # Within the bound it waits for the entries, in vain.
    with pytest.raises(ReplicaLagging if max_read_lag < 20 else ReadUnavailable):
        await late.node.read_index()
    late.transport.bind(late.node.receive)
    await until(lambda: late.node.applied_index == leader.node.applied_index)
    await late.node.read_index()
    assert len(late.machine.words) == 21


async def test_a_proposal_that_no_majority_takes_is_uncertain(group: Group) -> None:
    await group.begin("n0", "n1", "n2")
    leader = await group.leader()
    for peer in group.running():
        if peer is not leader:
            await group.leave(peer.name)
    waiting = asyncio.create_task(leader.node.propose(b"perhaps"))
    read = asyncio.create_task(leader.node.read_index())
    with pytest.raises(ProposalUncertain):
        await asyncio.wait_for(waiting, 5)
    with pytest.raises((NotLeader, ReadUnavailable)):
        await asyncio.wait_for(read, 5)
    assert leader.node.role is not Role.LEADER


async def test_snapshots_shorten_the_log_and_bring_up_a_node_that_missed_it(group: Group) -> None:
    config = RaftConfig(
        election_timeout_ms=200,
        snapshot_entries=50,
        trailing_entries=5,
        segment_bytes=1_000,
        snapshot_chunk_bytes=64,
    )
    await group.begin("n0", "n1", "n2", config=config)
    leader = await group.leader()
    away = next(p for p in group.running() if p is not leader)
    await group.leave(away.name)
    for round_number in range(10):
        await asyncio.gather(*(leader.node.propose(b"%d-%d" % (round_number, i)) for i in range(20)))
    await until(lambda: leader.node.core.log.base_index > 100)
    back = await group.restart(away.name, config=config)
    await until(lambda: len(back.machine.words) == 200)
    assert back.machine.words == leader.machine.words
    assert back.node.core.snapshot is not None
    segments = list((group.directory / leader.name).glob("log-*"))
    await until(lambda: len(list((group.directory / leader.name).glob("snapshot-*"))) == 1)
    assert int(segments[0].stem.split("-")[1]) > 1 or len(segments) < 10


async def test_leadership_moves_on_request(group: Group) -> None:
    await group.begin("n0", "n1", "n2")
    leader = await group.leader()
    await leader.node.propose(b"x")
    target = next(p for p in group.running() if p is not leader)
    changes: list[tuple[Role, int, str | None]] = []
    target.node.status.on_role_change = lambda *change: changes.append(change)
    await leader.node.changes.transfer_leadership(target.name)
    await until(lambda: target.node.role is Role.LEADER)
    assert (Role.LEADER, target.node.term, target.name) in changes
    await target.node.propose(b"y")


async def test_a_node_is_replaced(group: Group) -> None:
    await group.begin("n0", "n1", "n2")
    leader = await group.leader()
    await leader.node.propose(b"before")
    new = await group.open_port("m0")
    # A node that joins gets the members of the group, and that it has no vote yet.
    address = f"127.0.0.1:{new.server.port}"
    await new.join(Members(group.members.voters, {"m0": address}))
    old = next(p for p in group.running() if p not in (leader, new))
    await leader.node.changes.replace(old.name, "m0", address)
    assert set(leader.node.members.voters) == {*group.members.voters, "m0"} - {old.name}
    await leader.node.propose(b"after")
    await until(lambda: new.machine.words == [b"before", b"after"])
    with pytest.raises(MembershipRefused):
        await leader.node.changes.remove("stranger")


@pytest.mark.parametrize(("other_group", "secret"), [("other", "s"), ("g", "wrong")])
async def test_a_node_of_another_group_or_secret_is_refused(
    group: Group, other_group: str, secret: str, caplog: pytest.LogCaptureFixture
) -> None:
    await group.begin("n0", "n1", "n2")
    leader = await group.leader()
    term = leader.node.term
    await group.leave("n0" if leader.name != "n0" else "n1")
    name = "n0" if leader.name != "n0" else "n1"
    stranger = await group.open_port(name, group.peers[name].server.port)
    with caplog.at_level(logging.WARNING):
        group.directory = group.directory / "stranger"
        await stranger.join(group.members, group=other_group, secret=secret)
        await until(lambda: any("is refused by raft" in record.message for record in caplog.records))
    assert (await group.leader()).node.term == term
    assert stranger.node.term == 0


async def test_errors_that_leave_nothing_behind(group: Group) -> None:
    await group.begin("n0")
    peer = await group.leader()
    with pytest.raises(ProposalTooLarge):
        await peer.node.propose(bytes(10_001))
    peer.node.receive("n1", b"\xc1 not an envelope")
    peer.node.receive("n1", b"\x94\xa1g\xa2n1\xa2nX\x90")  # for another node
    assert await peer.node.propose(b"x") == 1
    await group.leave("n0")
    with pytest.raises(NodeStopped):
        await peer.node.propose(b"y")


async def test_a_disk_that_fails_stops_the_node(group: Group, caplog: pytest.LogCaptureFixture) -> None:
    await group.begin("n0")
    peer = await group.leader()
    failures: list[BaseException] = []
    peer.node.on_failure = failures.append

    def broken(save: object) -> None:
        raise OSError(28, "No space left on device", "/data/log-1.raft")

    peer.node._storage.save = broken  # type: ignore[method-assign]
    with pytest.raises(RaftError) as error:
        await peer.node.propose(b"x")
    assert isinstance(error.value.__cause__, OSError)
    assert [type(failure) for failure in failures] == [OSError]
    with pytest.raises(NodeStopped):
        await peer.node.propose(b"y")
    (line,) = (record for record in caplog.records if record.levelno == logging.CRITICAL)
    assert line.getMessage() == "raft g/n0 stops itself: /data/log-1.raft: No space left on device"
    assert line.exc_info is None


async def test_a_damaged_snapshot_that_a_follower_needs_stops_the_node_in_a_line(
    group: Group, caplog: pytest.LogCaptureFixture
) -> None:
    await group.begin("n0")
    node = (await group.leader()).node
    await node.propose(b"x")
    await node.take_snapshot()
    (path,) = (group.directory / "n0").glob("snapshot-*")
    path.write_bytes(path.read_bytes()[:-1])
    node._persistence.load_snapshot()
    node._persistence.wake()
    await until(lambda: not node._running)
    (line,) = (record for record in caplog.records if record.levelno == logging.CRITICAL)
    assert line.getMessage().startswith(f"raft g/n0 stops itself: {path}: offset 0: damaged snapshot")
    assert line.exc_info is None


async def test_a_disk_that_fails_when_its_files_are_closed_is_logged_in_a_line(
    group: Group, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever stops a node has more to close."""
    await group.begin("n0")
    node = (await group.leader()).node
    close = node._storage.close

    def broken() -> None:
        close()
        raise OSError(5, "Input/output error", "/data/log-1.raft")

    monkeypatch.setattr(node._storage, "close", broken)
    await node.stop()
    errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert [record.getMessage() for record in errors] == [
        "raft g/n0: its disk failed as it stopped: /data/log-1.raft: Input/output error"
    ]


async def test_a_state_machine_that_raises_stops_the_node(
    group: Group, caplog: pytest.LogCaptureFixture
) -> None:
    await group.begin("n0")
    peer = await group.leader()

    def broken(index: int, data: bytes) -> int:
        raise KeyError("unknown event")

    peer.machine.apply = broken  # type: ignore[method-assign]
    with pytest.raises(ProposalUncertain) as error:
        await peer.node.propose(b"x")
    assert isinstance(error.value.__cause__, KeyError)
    with pytest.raises(NodeStopped):
        await peer.node.read_index()
    (line,) = (record for record in caplog.records if record.levelno == logging.CRITICAL)
    assert line.exc_info is not None  # where the programming error is


async def test_a_corrupt_log_refuses_to_start_naming_the_file(group: Group) -> None:
    await group.begin("n0")
    peer = await group.leader()
    await peer.node.propose(b"precious")
    await group.leave("n0")
    (path,) = (group.directory / "n0").glob("log-*")
    data = bytearray(path.read_bytes())
    data[data.index(b"precious")] ^= 1
    path.write_bytes(data)
    with pytest.raises(StorageCorrupt, match=rf"{path}: offset \d+: damaged record"):
        await group.restart("n0")


class _NoThreads(ThreadWorker):
    """A process that may not begin a thread any more."""

    def submit(self, job: Job, done: Done, *, brief: bool = False) -> None:
        raise RuntimeError("can't start new thread")


class _Gated(ThreadWorker):
    """The disk hangs until `gate` is set, and then says `error`."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.gate: threading.Event | None = None
        self.error = OSError("no space left on device")

    def submit(self, job: Job, done: Done, *, brief: bool = False) -> None:
        def gated() -> None:
            if self.gate is not None:
                self.gate.wait()
                raise self.error
            job()

        super().submit(gated, done, brief=brief)


async def test_a_node_whose_worker_takes_no_job_fails_and_can_be_stopped(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "ThreadWorker", _NoThreads)
    await group.begin("n0")
    node = group.peers["n0"].node
    assert not node._running
    async with asyncio.timeout(2):
        await node.stop()


async def _with_a_hanging_disk(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> tuple[RaftNode, threading.Event, asyncio.Future[object]]:
    """A leader, what lets its disk fail in the end, and a proposal that waits for it."""
    monkeypatch.setattr(sys.modules[__name__], "ThreadWorker", _Gated)
    await group.begin("n0")
    node = (await group.leader()).node
    assert isinstance(node._persistence._worker, _Gated)
    await until(lambda: not node._persistence.busy)
    gate = node._persistence._worker.gate = threading.Event()
    proposal = asyncio.ensure_future(node.propose(b"x"))
    await until(lambda: node._persistence.busy)
    return node, gate, proposal


async def test_a_disk_failure_while_a_node_stops_is_logged(
    group: Group, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also to whoever stops it a second time, or gives up waiting and tries again."""
    node, gate, proposal = await _with_a_hanging_disk(group, monkeypatch)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(node.stop(), 0.05)
    with pytest.raises((ProposalUncertain, NodeStopped)):  # the latter if the disk was busy with less
        await proposal
    stops = [asyncio.ensure_future(node.stop()) for _ in range(2)]
    await asyncio.sleep(0.01)
    gate.set()
    async with asyncio.timeout(2):
        await asyncio.gather(*stops)
    assert any("no space left on device" in message for message in caplog.messages)


async def test_a_disk_that_never_answers_does_not_keep_a_node_from_stopping(
    group: Group, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("batonmq.raft.persistence.DISK_PATIENCE_S", 0.05)
    node, gate, proposal = await _with_a_hanging_disk(group, monkeypatch)
    async with asyncio.timeout(2):
        await asyncio.gather(node.stop(), node.stop())
        await node.stop()
    with pytest.raises((ProposalUncertain, NodeStopped)):
        await proposal
    assert sum("its disk did not answer for 0.05 s" in message for message in caplog.messages) == 1
    gate.set()


async def test_stopping_together_closes_once(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two closes beside each other closed one file descriptor twice."""
    await group.begin("n0")
    node = (await group.leader()).node
    closes = 0
    close = node._storage.close

    def slow() -> None:
        nonlocal closes
        closes += 1
        time.sleep(0.02)
        close()

    monkeypatch.setattr(node._storage, "close", slow)
    await asyncio.gather(*(node.stop() for _ in range(4)))
    assert closes == 1


async def test_a_node_whose_directory_was_emptied_gets_the_log_again_and_a_warning(
    group: Group, caplog: pytest.LogCaptureFixture
) -> None:
    await group.begin("n0", "n1", "n2")
    leader = await group.leader()
    await leader.node.propose(b"kept")
    name = next(peer.name for peer in group.running() if peer is not leader)
    await until(lambda: group.peers[name].machine.words == [b"kept"])
    await group.leave(name)
    shutil.rmtree(group.directory / name)
    emptied = await group.restart(name)
    await leader.node.propose(b"new")
    await until(lambda: emptied.machine.words == [b"kept", b"new"])
    assert leader.node.role is Role.LEADER
    warnings = [
        record.getMessage() for record in caplog.records if "have lost its log" in record.getMessage()
    ]
    assert len(warnings) == 1 and warnings[0].startswith(name)
