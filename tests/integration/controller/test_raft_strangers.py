"""Strangers on the Raft port of real controllers: they are refused in a line, and move nothing."""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest
from tests.certificates import Authority, authority
from tests.integration.group import anonymous_mib, exchange, read

from batonmq.demo.cluster import Program
from batonmq.demo.ports import free_ports
from batonmq.net.client import RemotingClient
from batonmq.net.errors import NetError
from batonmq.protocol.bodies.controller import decode_controller_members
from batonmq.protocol.errors import MQError
from batonmq.protocol.frame import Command, encode
from batonmq.protocol.headers.controller import (
    ApplyBrokerId,
    GetControllerMembers,
    GetMetadata,
    GetMetadataReply,
    RaftMessage,
)
from batonmq.raft.messages import (
    Append,
    Entry,
    Envelope,
    InstallSnapshot,
    Kind,
    Members,
    RequestVote,
    SnapshotMeta,
)
from batonmq.raft.messages import encode as encode_raft
from batonmq.raft.transport import SharedSecret

SECRET = "of the controllers"
ATTEMPTS = 20
"""Of each stranger at each controller: with a line for each, the log would be full of them."""
NAMES = ("n0", "n1", "n2")


def client_tls(trusted: Authority, own: Authority | None = None, name: str = "client") -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(trusted.certificate)
    if own is not None:
        context.load_cert_chain(*own.issue(name))
    return context


@dataclass
class Controllers:
    """Three processes. `group` is the name of the Raft group, `ids` are its nodes."""

    programs: list[Program]
    group: str
    ids: list[str]
    raft_addresses: list[str]
    tls: ssl.SSLContext | None
    """How brokers and operators speak to them."""
    claimed: int = 0
    client: RemotingClient = field(init=False)

    def __post_init__(self) -> None:
        self.client = RemotingClient(tls=self.tls, connect_timeout_ms=1_000)

    def start(self) -> None:
        for program in self.programs:
            program.start(wait=False)
        for program in self.programs:
            program.wait_ready()

    async def serve(self, within_s: float = 40) -> str:
        """A write that a majority has; returns who leads."""
        deadline = time.monotonic() + within_s
        claim = ApplyBrokerId(f"set{self.claimed}", 1, "h:1;1", "c")
        while True:
            for program in self.programs:
                with contextlib.suppress(NetError, MQError):
                    await self.client.call(program.address, claim, timeout_ms=1_000)
                    self.claimed += 1
                    answer = await self.client.call(program.address, GetMetadata())
                    assert isinstance(answer.header, GetMetadataReply)
                    return str(answer.header.controller_leader_id)
            assert time.monotonic() < deadline, self.logs()[-3_000:]
            await asyncio.sleep(0.02)

    async def seen(self) -> list[tuple[str | None, int, int, list[str]]]:
        """Leader, term, commit index and members, as each of them says."""
        found = []
        for program in self.programs:
            answer = await self.client.call(program.address, GetControllerMembers())
            shown = decode_controller_members(bytes(answer.body))
            ids = [member.controller_id for member in shown.members]
            found.append((shown.leader_id, shown.term, shown.commit_index, ids))
        return found

    def logs(self) -> str:
        return "".join(read(program.log_path) for program in self.programs)

    def descriptors(self) -> list[int]:
        return [len(os.listdir(f"/proc/{program.pid}/fd")) for program in self.programs]

    def memory_mib(self) -> list[float]:
        return [anonymous_mib(program.pid) for program in self.programs]


def settings(directory: Path, name: str, more: Mapping[str, object]) -> dict[str, object]:
    return {
        "controllerStorePath": directory / name,
        "bindAddress": "127.0.0.1",
        "controllerRaftSecret": SECRET,
        # On a busy machine a leader may be late by a second, and then it would not be the strangers' doing.
        "jRaftElectionTimeoutMs": 5_000,
        **more,
    }


@pytest.fixture
def ca(tmp_path: Path) -> Authority:
    return authority(tmp_path / "ca")


@pytest.fixture
def foreign(tmp_path: Path) -> Authority:
    return authority(tmp_path / "foreign")


@pytest.fixture
async def shared(tmp_path: Path, ca: Authority) -> AsyncIterator[Controllers]:
    """Brokers and Raft on one port, where all must show a certificate."""
    ports = free_ports(3)
    peers = ";".join(f"{name}-127.0.0.1:{port}" for name, port in zip(NAMES, ports, strict=True))
    programs = []
    for name, port in zip(NAMES, ports, strict=True):
        own = {
            "controllerDLegerGroup": "g",
            "controllerDLegerPeers": peers,
            "controllerDLegerSelfId": name,
        }
        keys = settings(tmp_path, name, {**own, **ca.mutual(name)})
        programs.append(Program(name, "controller", tmp_path, keys, port=port))
    addresses = [program.address for program in programs]
    async with running(Controllers(programs, "g", list(NAMES), addresses, client_tls(ca, ca))) as controllers:
        yield controllers


@pytest.fixture
async def separate(tmp_path: Path, ca: Authority) -> AsyncIterator[Controllers]:
    """Raft on a separate port with certificates on both sides; brokers speak plain text."""
    ports = free_ports(6)
    raft = [f"127.0.0.1:{port}" for port in ports[:3]]
    programs = []
    for number, name in enumerate(NAMES):
        certificate, key = ca.issue(name)
        own = {
            "controllerType": "jRaft",
            "jRaftGroupId": "g",
            "jRaftServerId": raft[number],
            "jRaftInitConf": ",".join(raft),
            "jRaftControllerRPCAddr": ",".join(f"127.0.0.1:{port}" for port in ports[3:]),
            "controllerRaftTlsEnable": "true",
            "tls.server.mode": "disabled",
            "tls.server.certPath": certificate,
            "tls.server.keyPath": key,
            "tls.server.trustCertPath": ca.certificate,
        }
        keys = settings(tmp_path, name, own)
        programs.append(Program(name, "controller", tmp_path, keys, port=ports[3 + number]))
    async with running(Controllers(programs, "g", raft, raft, None)) as controllers:
        yield controllers


@contextlib.asynccontextmanager
async def running(controllers: Controllers) -> AsyncIterator[Controllers]:
    try:
        controllers.start()
        yield controllers
    finally:
        await controllers.client.close()
        for program in controllers.programs:
            program.kill()


@dataclass
class Stranger:
    """Speaks Raft, as somebody who may not."""

    tls: ssl.SSLContext | None
    lock: SharedSecret
    group: str = "g"

    async def attack(self, controllers: Controllers) -> None:
        """At each controller, as one of its peers: a vote, an entry, a snapshot, of a term far ahead."""
        for target, address in zip(controllers.ids, controllers.raft_addresses, strict=True):
            sender = next(each for each in controllers.ids if each != target)
            envelope = Envelope(
                self.group,
                sender,
                target,
                [
                    RequestVote(1_000, 1_000_000, 1_000, True),
                    Append(1_000, 0, 0, 1_000_000, [Entry(1_000, Kind.DATA, b"forged")]),
                    InstallSnapshot(
                        1_000, SnapshotMeta(10**6, 999, Members({sender: address})), 1, 0, 0, b"x"
                    ),
                ],
            )
            await self.send(address, sender, self.lock.seal(encode_raft(envelope)))

    async def send(self, address: str, sender: str, payload: bytes) -> None:
        for _ in range(ATTEMPTS):
            client = RemotingClient(tls=self.tls, connect_timeout_ms=2_000)
            try:
                # With an answer, so that it has been looked at when this returns.
                with contextlib.suppress(NetError, MQError):
                    await client.call(address, RaftMessage(self.group, sender), payload, timeout_ms=2_000)
            finally:
                await client.close()


async def unmoved(controllers: Controllers, attack: Awaitable[None], most_lines: int = 3) -> str:
    """Carry out `attack`; nothing may move but what this test writes. What was logged meanwhile."""
    leader = await controllers.serve()
    before = await controllers.seen()
    descriptors, memory = controllers.descriptors(), controllers.memory_mib()
    said_before = [read(program.log_path) for program in controllers.programs]
    await attack
    assert await controllers.serve() == leader
    after = await controllers.seen()
    for (was_leader, was_term, was_commit, was_ids), (now_leader, now_term, now_commit, now_ids) in zip(
        before, after, strict=True
    ):
        assert (now_leader, now_term, now_ids) == (was_leader, was_term, was_ids)
        assert now_commit < was_commit + 100  # what the test itself writes, and the controllers' own scans
    deadline = time.monotonic() + 10
    while any(now > was + 3 for was, now in zip(descriptors, controllers.descriptors(), strict=True)):
        assert time.monotonic() < deadline, (descriptors, controllers.descriptors())
        await asyncio.sleep(0.05)
    grown = [now - was for was, now in zip(memory, controllers.memory_mib(), strict=True)]
    assert max(grown) < 40, grown
    said = []
    for program, already in zip(controllers.programs, said_before, strict=True):
        new = read(program.log_path)[len(already) :]
        assert "Traceback" not in new, new
        lines = [line for line in new.splitlines() if "WARN" in line or "ERROR" in line]
        assert 1 <= len(lines) <= most_lines, new[:3_000]
        said.append("\n".join(lines))
    return "\n".join(said)


async def test_controllers_with_certificates_elect_and_serve(shared: Controllers) -> None:
    await shared.serve()
    leader = await shared.serve()
    shared.programs[NAMES.index(leader)].kill()
    assert await shared.serve() != leader


async def test_who_may_not_take_part_is_refused(
    shared: Controllers, ca: Authority, foreign: Authority
) -> None:
    knows = SharedSecret(SECRET)
    said = await unmoved(shared, Stranger(client_tls(ca), knows).attack(shared))
    assert said.count("failed the TLS handshake") == 3 and "certificate" in said
    said = await unmoved(shared, Stranger(client_tls(ca, foreign), knows).attack(shared))
    assert said.count("failed the TLS handshake") == 3
    said = await unmoved(shared, Stranger(None, knows).attack(shared))
    assert said.count("speaks plain text, and tls.server.mode is enforcing") == 3
    inside = client_tls(ca, ca, "broker")
    said = await unmoved(shared, Stranger(inside, SharedSecret("guessed")).attack(shared))
    assert said.count("does not know the group's secret") == 3
    said = await unmoved(shared, Stranger(inside, knows, "other").attack(shared))
    assert said.count("is of another group, 'other'") == 3


async def test_raft_with_certificates_beside_brokers_without(
    separate: Controllers, ca: Authority, foreign: Authority
) -> None:
    await separate.serve()
    leader = await separate.serve()
    knows = SharedSecret(SECRET)
    for tls, reason in (
        (None, "speaks plain text"),
        (client_tls(ca), "failed the TLS handshake"),
        (client_tls(ca, foreign), "failed the TLS handshake"),
    ):
        assert reason in await unmoved(separate, Stranger(tls, knows).attack(separate))
    separate.programs[separate.ids.index(leader)].kill()
    assert await separate.serve() != leader


async def garbage(controllers: Controllers) -> None:
    """Bytes that are not a frame, a frame that says it is 2 GiB, half a frame; in plain text."""
    command = Command(RaftMessage("g", "n0").code, RaftMessage("g", "n0").to_ext())
    for address in controllers.raft_addresses:
        for data in (os.urandom(1 << 16), b"\x7f\xff\xff\xff" + bytes(1 << 16), encode(command)[:-3]):
            await exchange(address, data, then_close=True)


async def test_garbage_in_plain_text(separate: Controllers) -> None:
    assert "speaks plain text" in await unmoved(separate, garbage(separate))


async def nonsense(controllers: Controllers, tls: ssl.SSLContext) -> None:
    """Of one who knows the secret: payloads that are not an envelope, and envelopes for somebody else."""
    lock = SharedSecret(SECRET)
    stranger = Stranger(tls, lock)
    for target, address in zip(controllers.ids, controllers.raft_addresses, strict=True):
        sender = next(each for each in controllers.ids if each != target)
        await stranger.send(address, sender, lock.seal(os.urandom(1 << 16)))
        astray = Envelope("g", sender, "elsewhere", [RequestVote(1_000, 10**6, 1_000, True)])
        await stranger.send(address, sender, lock.seal(encode_raft(astray)))


async def test_nonsense_of_one_who_knows_the_secret(shared: Controllers, ca: Authority) -> None:
    said = await unmoved(shared, nonsense(shared, client_tls(ca, ca)))
    assert said.count("a malformed message, which is dropped") == 3
    assert said.count("for node 'elsewhere'") == 3


async def snapshots(controllers: Controllers, tls: ssl.SSLContext) -> None:
    """Of one who knows the secret, in the name of the leader or, at the leader, of another."""
    lock, stranger = SharedSecret(SECRET), Stranger(tls, SharedSecret(SECRET))
    leader = await controllers.serve()
    term = (await controllers.seen())[0][1]
    members = Members(dict(zip(controllers.ids, controllers.raft_addresses, strict=True)))
    for target, address in members.voters.items():
        sender = leader if target != leader else next(each for each in controllers.ids if each != target)
        for index, ends_in, data in (
            (10**6, term, b"no state"),
            (10**6, term, msgspec.msgpack.encode([2, "of", "a later version"])),
            (2**61, term, b"far ahead"),
            (10**6, term, b"large"),
            (1, term, b"long ago"),
            (10**6, term + 1, b"of a later term"),
        ):
            meta = SnapshotMeta(index, ends_in, members)
            total = 65 << 20 if data == b"large" else len(data)
            message = InstallSnapshot(term, meta, total, zlib.crc32(data), 0, data)
            payload = lock.seal(encode_raft(Envelope(controllers.group, sender, target, [message])))
            await stranger.send(address, sender, payload)


async def test_snapshots_that_nobody_can_restore_move_nothing(
    shared: Controllers, ca: Authority, tmp_path: Path
) -> None:
    tls = client_tls(ca, ca)
    said = await unmoved(shared, snapshots(shared, tls), most_lines=5)
    refused = f"{await shared.serve()} sent raft g/n"
    assert said.count("which is refused: it holds no controllers' state") == 2, said
    assert said.count("which is refused: it holds controllers' state of version 2, known is 1") == 2
    assert said.count(f"which is refused: it ends at index {2**61}") == 2
    assert said.count(f"which is refused: it has {65 << 20} bytes, at most {64 << 20} are taken") == 2
    assert said.count("malformed message, which is dropped: a leader of term") == 3
    assert said.count(refused) == 2 * 5
    assert not list(tmp_path.glob("n*/raft-*/snapshot-*"))
    for program in shared.programs:
        program.kill()
    shared.start()
    await shared.serve()


async def entries(controllers: Controllers, tls: ssl.SSLContext) -> None:
    """Of one who knows the secret, in the leader's name, at the place where the leader's next entry comes."""
    lock, stranger = SharedSecret(SECRET), Stranger(tls, SharedSecret(SECRET))
    leader = await controllers.serve()
    for target, address in zip(controllers.ids, controllers.raft_addresses, strict=True):
        if target == leader:
            continue
        for data in (b"forged", msgspec.msgpack.encode([99, 5, []])):
            _, term, last, _ = (await controllers.seen())[0]
            message = Append(term, last, term, last + 1, [Entry(term, Kind.DATA, data)])
            payload = lock.seal(encode_raft(Envelope(controllers.group, leader, target, [message])))
            await stranger.send(address, leader, payload)


async def test_entries_that_are_not_events_move_nothing(shared: Controllers, ca: Authority) -> None:
    leader = await shared.serve()
    # At the leader nothing is sent, and nothing is logged.
    before = [read(program.log_path) for program in shared.programs]
    await entries(shared, client_tls(ca, ca))
    assert await shared.serve() == leader
    for name, program, already in zip(NAMES, shared.programs, before, strict=True):
        said = [line for line in read(program.log_path)[len(already) :].splitlines() if " WARNING " in line]
        assert len(said) == (0 if name == leader else 2), said
        assert all(f"{leader} sent raft g/{name} an entry, which is refused: " in line for line in said), said
    for program in shared.programs:
        program.kill()
    shared.start()
    await shared.serve()
    assert "ignores entry" not in shared.logs() and "Traceback" not in shared.logs()


async def test_the_same_messages_of_one_who_may_take_part_count(shared: Controllers, ca: Authority) -> None:
    """Else all the refusals above would prove nothing."""
    leader = await shared.serve()
    target = next(each for each in shared.ids if each != leader)
    lock = SharedSecret(SECRET)
    envelope = Envelope("g", leader, target, [RequestVote(1_000, 10**6, 1_000, True)])
    await Stranger(client_tls(ca, ca), lock).send(
        shared.raft_addresses[shared.ids.index(target)], leader, lock.seal(encode_raft(envelope))
    )
    await shared.serve()
    assert min(term for _, term, _, _ in await shared.seen()) >= 1_000
