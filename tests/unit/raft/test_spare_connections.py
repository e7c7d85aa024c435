"""Messages between two nodes while TCP says that packets get lost, over real connections."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable

import pytest

from batonmq.net import tcp
from batonmq.net.client import RemotingClient
from batonmq.net.connection import Connection
from batonmq.net.dispatch import Dispatcher
from batonmq.net.server import RemotingServer
from batonmq.net.tcp import Retransmits
from batonmq.raft import spare_connections
from batonmq.raft.messages import decode_envelope
from batonmq.raft.transport import RemotingTransport


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.002)


class Pair:
    """`sender` has a first connection and two spare ones to a server that records what arrives."""

    def __init__(self) -> None:
        self.arrived: list[bytes] = []
        dispatcher = Dispatcher()
        receiver = RemotingTransport("g", "n1", RemotingClient(), dispatcher)
        receiver.bind(lambda sender, payload: self.arrived.append(bytes(payload)))
        self.server = RemotingServer(dispatcher, "127.0.0.1", 0)
        self.clients = [RemotingClient() for _ in range(3)]
        self.sender = RemotingTransport("g", "n0", self.clients[0], Dispatcher(), spares=self.clients[1:])
        self.address = ""

    async def open(self) -> None:
        await self.server.start()
        self.address = f"127.0.0.1:{self.server.port}"
        self.sender.set_peers({"n1": self.address})
        self.sender.send("n1", b"first")
        await until(lambda: self.arrived == [b"first"])
        self.sender.send("n1", b"second")
        await until(lambda: all(client.connected(self.address) for client in self.clients))
        await until(lambda: len(self.arrived) == 4)
        assert self.arrived.count(b"second") == 1
        greetings = [payload for payload in self.arrived if payload not in (b"first", b"second")]
        assert [decode_envelope(each).messages for each in greetings] == [[], []]
        self.arrived.clear()

    def connection(self, number: int) -> Connection:
        connection = self.clients[number].connected(self.address)
        assert connection is not None
        return connection

    async def arrives(self, payload: bytes, times: int) -> None:
        """Send it; it arrives so often, and not once more."""
        self.sender.send("n1", payload)
        await until(lambda: len(self.arrived) >= times)
        await asyncio.sleep(0.05)
        assert self.arrived == [payload] * times
        self.arrived.clear()

    async def close(self) -> None:
        await self.sender.close()
        await self.clients[0].close()
        await self.server.stop()


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    made = Pair()
    await made.open()
    yield made
    await made.close()


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> set[Connection]:
    """Connections on which TCP waits before it repeats a segment."""
    found: set[Connection] = set()
    monkeypatch.setattr(Connection, "retransmitting", lambda self: self in found)
    return found


async def test_while_nothing_gets_lost_a_message_goes_once(pair: Pair) -> None:
    await pair.arrives(b"x", 1)
    await pair.arrives(bytes(100_000), 1)


async def test_while_packets_get_lost_small_messages_go_every_way_where_nothing_waits(
    pair: Pair, waiting: set[Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting.add(pair.connection(0))
    await pair.arrives(b"x", 2)
    await pair.arrives(bytes(100_000), 1)  # large ones only one way
    waiting.add(pair.connection(1))
    await pair.arrives(b"x", 1)
    waiting.add(pair.connection(2))
    await pair.arrives(b"x", 1)  # it waits with the others: no way is better
    waiting.clear()
    await pair.arrives(b"x", 3)  # for some time the path counts as one that loses packets
    monkeypatch.setattr(spare_connections, "LOSSY_S", -1.0)
    waiting.add(pair.connection(0))
    await pair.arrives(b"x", 1)
    waiting.clear()
    await pair.arrives(b"x", 1)


async def test_without_the_first_connection_messages_go_over_the_others(pair: Pair) -> None:
    pair.clients[0].drop(pair.address)
    pair.sender.send("n1", b"x")
    await until(lambda: pair.arrived.count(b"x") == 3)  # over the new first one, too
    assert pair.clients[0].connected(pair.address) is not None


async def test_a_spare_connection_that_broke_is_opened_again(pair: Pair) -> None:
    pair.clients[1].drop(pair.address)
    await until(lambda: pair.clients[1].connected(pair.address) is not None)


async def test_there_are_none_to_a_node_that_left(pair: Pair) -> None:
    pair.sender.set_peers({})
    await asyncio.sleep(2 * spare_connections._RETRY_S)
    assert not any(client.connected(pair.address) for client in pair.clients)


class FakeSocket:
    def __init__(self) -> None:
        self.retransmits, self.looks = 0, 0

    def getsockopt(self, level: int, option: int, size: int) -> bytes:
        self.looks += 1
        return struct.pack("BBB", 1, 0, self.retransmits)[:size]


class FakeTransport:
    def __init__(self, sock: FakeSocket | None) -> None:
        self.sock = sock

    def get_extra_info(self, name: str) -> FakeSocket | None:
        assert name == "socket"
        return self.sock

    def is_closing(self) -> bool:
        return False


def test_tcp_is_asked_once_in_a_while() -> None:
    sock = FakeSocket()
    retransmits = Retransmits(FakeTransport(sock))  # type: ignore[arg-type]
    assert retransmits.under_way(1.0) is False
    sock.retransmits = 3
    assert retransmits.under_way(1.0 + tcp.LOOK_AGAIN_S / 2) is False and sock.looks == 1
    assert retransmits.under_way(1.0 + tcp.LOOK_AGAIN_S) is True and sock.looks == 2


def test_without_a_socket_nobody_knows() -> None:
    assert Retransmits(FakeTransport(None)).under_way(1.0) is None  # type: ignore[arg-type]
