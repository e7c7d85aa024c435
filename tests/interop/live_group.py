"""A replica group under load, seen through its controllers, whichever system they and its brokers are of."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable

import pytest

from batonmq.client.errors import ClientError
from batonmq.client.message import Message
from batonmq.client.producer import Producer
from batonmq.client.reader import QueueReader
from batonmq.net.client import RemotingClient
from batonmq.net.errors import NetError
from batonmq.protocol.bodies.controller import decode_sync_state_set
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers import controller as wire
from batonmq.protocol.message.record import decode_records
from tests.interop.conftest import JavaProcess, Peer

TOPIC = "numbers"
NODES = 3


async def start_controllers(peer: Peer, kind: str) -> dict[str, JavaProcess]:
    """Three of RocketMQ's controllers of a kind (DLedger or jRaft), by address."""
    ports = [peer.free_port() for _ in range(NODES)]
    raft_ports = [peer.free_port() for _ in range(NODES)]
    started = await asyncio.gather(
        *(
            peer.start("controller", controller_keys(kind, ports, raft_ports, number))
            for number in range(NODES)
        )
    )
    return dict(zip([f"127.0.0.1:{port}" for port in ports], started, strict=True))


def controller_keys(kind: str, ports: list[int], raft_ports: list[int], number: int) -> dict[str, object]:
    rpc = [f"127.0.0.1:{port}" for port in ports]
    raft = [f"127.0.0.1:{port}" for port in raft_ports]
    keys: dict[str, object] = {
        "controllerDLegerPeers": ";".join(f"n{i}-{address}" for i, address in enumerate(rpc)),
        "controllerDLegerSelfId": f"n{number}",
    }
    if kind == "jRaft":
        keys |= {
            "controllerType": "jRaft",
            "jRaftGroupId": "interop",
            "jRaftServerId": raft[number],
            "jRaftInitConf": ",".join(raft),
            "jRaftControllerRPCAddr": ",".join(rpc),
        }
    return keys


class Group:
    """The replica group as its controllers see it."""

    def __init__(self, name: str, addresses: list[str], client: RemotingClient) -> None:
        self._name = name
        self._addresses = addresses
        self._client = client

    async def leader(self) -> str:
        """Address of the leading controller."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            for address in self._addresses:
                with contextlib.suppress(NetError, MQError):
                    answer = await self._client.call(address, wire.GetMetadata(), timeout_ms=1000)
                    assert isinstance(answer.header, wire.GetMetadataReply)
                    if answer.header.is_leader:
                        return address
            await asyncio.sleep(0.1)
        pytest.fail("no controller leads")

    async def state(self) -> tuple[int, int, tuple[int, ...]]:
        """(master's id or 0, its epoch, the SyncStateSet)."""
        try:
            answer = await self._client.call(await self.leader(), wire.GetReplicaInfo(self._name))
        except (NetError, MQError):
            return 0, 0, ()
        assert isinstance(answer.header, wire.GetReplicaInfoReply)
        members = decode_sync_state_set(bytes(answer.body)).sync_state_set
        return answer.header.master_broker_id or 0, answer.header.master_epoch or 0, tuple(sorted(members))

    async def until(self, what: Callable[[int, int, tuple[int, ...]], bool], text: str) -> int:
        """Wait for a state; returns the master's id."""
        deadline = time.monotonic() + 60
        while not what(*(state := await self.state())):
            if time.monotonic() > deadline:
                pytest.fail(f"not within 60 s: {text}; master, epoch and SyncStateSet are {state}")
            await asyncio.sleep(0.05)
        return state[0]


class Load:
    """Numbers sent one after the other to one queue; what was acknowledged must be there at the end."""

    def __init__(self, namesrv: str) -> None:
        self._namesrv = namesrv
        self.acked: list[int] = []
        self._next = 0
        self._going = True

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with Producer("interop", self._namesrv, retries=10) as producer:
            task = asyncio.create_task(self._send(producer))
            try:
                yield
            finally:
                self._going = False
                await task

    async def _send(self, producer: Producer) -> None:
        while self._going:
            number, self._next = self._next, self._next + 1
            with contextlib.suppress(ClientError, MQError, NetError):
                await producer.send(Message(TOPIC, str(number).encode()), timeout_ms=10_000)
                self.acked.append(number)
            await asyncio.sleep(0.002)

    async def grows(self, text: str) -> None:
        """Sends are acknowledged."""
        before, deadline = len(self.acked), time.monotonic() + 30
        while len(self.acked) < before + 20:
            if time.monotonic() > deadline:
                pytest.fail(f"no sends are acknowledged: {text}")
            await asyncio.sleep(0.02)

    async def received(self) -> list[list[int]]:
        """What each queue holds, in its order."""
        found = []
        async with QueueReader(self._namesrv) as reader:
            for queue in await reader.queues(TOPIC):
                numbers: list[int] = []
                offset, end = 0, await reader.max_offset(queue)
                while offset < end:
                    pulled = await reader.pull(queue, offset)
                    records = decode_records(pulled.records)
                    numbers += [int(record.body) for record in records]
                    offset = pulled.next_offset
                found.append(numbers)
        return found

    async def check(self) -> None:
        """All that was acknowledged is there, in order."""
        queues = await self.received()
        stored = {number for numbers in queues for number in numbers}
        assert stored.issuperset(self.acked), f"lost: {sorted(set(self.acked) - stored)[:10]}"
        for numbers in queues:
            first_copies = list(dict.fromkeys(numbers))
            assert first_copies == sorted(first_copies), "out of order"
