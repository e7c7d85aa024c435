"""What servers and clients keep and do at most, on real sockets."""

from __future__ import annotations

import asyncio
import gc
import resource
import tracemalloc

import pytest
from tests.unit.net.pair import ASYNC, ECHO, LATER, dispatcher, echo, pair

from batonmq.net import (
    ConnectionLost,
    Limits,
    RemotingClient,
    RemotingServer,
    Reply,
    Request,
)
from batonmq.protocol.codes import FLAG_ONEWAY, ResponseCode
from batonmq.protocol.frame import Command, FrameReader, encode

LARGE = 30_000


async def test_requests_in_flight_are_bounded_and_all_get_served() -> None:
    held: list[Request] = []
    most = 0

    def hold(request: Request) -> None:
        nonlocal most
        held.append(request)
        most = max(most, len(request.connection.in_flight) + 1)

    async with pair(dispatcher(later=hold), limits=Limits(max_in_flight=8)) as (_, client, address):
        calls = [asyncio.ensure_future(client.invoke(address, Command(LATER, {}))) for _ in range(100)]
        served = 0
        while served < 100:
            await asyncio.sleep(0.001)
            assert len(held) <= 8
            for request in held[:3]:
                request.reply(Reply())
                served += 1
            del held[:3]
        await asyncio.gather(*calls)
    assert most == 8


@pytest.mark.parametrize(
    ("fields", "body", "binary"),
    [
        ({}, bytes(LARGE), False),
        ({"subscription": "x" * LARGE}, b"", False),
        ({"subscription": "x" * LARGE}, b"", True),
    ],
    ids=["body", "JSON fields", "binary fields"],
)
async def test_bytes_in_flight_are_bounded_and_all_get_served(
    fields: dict[str, str], body: bytes, binary: bool
) -> None:
    """Those of fields count as those of bodies do."""
    held: list[Request] = []
    limits = Limits(max_in_flight_bytes=100_000)
    async with pair(dispatcher(later=held.append), limits=limits) as (_, client, address):
        calls = [
            asyncio.ensure_future(client.invoke(address, Command(LATER, fields, body, binary=binary)))
            for _ in range(30)
        ]
        served = 0
        while served < 30:
            await asyncio.sleep(0.002)
            assert len(held) <= 4
            for request in held:
                request.command.body = b""  # a handler may let go of it; the account stays right
                request.reply(Reply())
                served += 1
            held.clear()
        await asyncio.gather(*calls)


@pytest.mark.parametrize("kind", ["later", "async"])
async def test_a_held_request_does_not_keep_what_was_read_with_it(kind: str) -> None:
    count, filler = 100, encode(Command(ECHO, {}, bytes(60_000), flag=FLAG_ONEWAY))
    held: list[Request] = []
    end = asyncio.Event()

    async def wait(request: Request) -> Reply:
        held.append(request)
        await end.wait()
        return Reply(body=request.command.body, ext=request.command.ext)

    handlers = dispatcher(**{kind: held.append if kind == "later" else wait}, echo=echo)
    async with pair(handlers) as (server, _, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        tracemalloc.start()
        for number in range(count):
            code, body = (LATER, b"") if kind == "later" else (ASYNC, b"a body")
            writer.write(encode(Command(code, {"topic": "T"}, body, opaque=number)) + filler)
            await writer.drain()
        async with asyncio.timeout(5):
            while len(held) < count:
                await asyncio.sleep(0.002)
        await asyncio.sleep(0.01)
        gc.collect()
        kept = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        assert kept < count * 20_000, kept
        end.set()
        for request in held if kind == "later" else ():
            request.reply(Reply(ext=request.command.ext))
        frames = FrameReader()
        answers: list[Command] = []
        async with asyncio.timeout(5):
            while len(answers) < count:
                answers += frames.feed(await reader.read(1 << 16))
        assert {answer.opaque for answer in answers} == set(range(count))
        assert all(answer.ext == {"topic": "T"} for answer in answers)
        assert {bytes(answer.body) for answer in answers} == {b"" if kind == "later" else b"a body"}
        writer.close()


async def test_a_oneway_coroutine_counts_while_it_runs() -> None:
    running = 0
    most = 0

    async def slow(request: Request) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1

    limits = Limits(max_in_flight=4)
    async with pair(dispatcher(**{"async": slow}, echo=echo), limits=limits) as (server, _, _):
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        for number in range(40):
            writer.write(encode(Command(ASYNC, {}, flag=FLAG_ONEWAY, opaque=number)))
        await asyncio.sleep(0.02)
        while running or next(iter(server.connections)).in_flight:
            await asyncio.sleep(0.001)
        assert most == 4
        writer.close()


async def test_a_request_nobody_answers_is_answered_after_its_time() -> None:
    held: list[Request] = []
    limits = Limits(request_timeout_ms=60)

    async with pair(dispatcher(later=held.append), limits=limits) as (_, client, address):
        answer = await client.invoke(address, Command(LATER, {}))
        assert answer.code == ResponseCode.SYSTEM_BUSY and "try again" in (answer.remark or "")
        held[0].reply(Reply())  # too late, and no error
        assert held[0].answered


async def test_an_idle_connection_is_closed_and_a_busy_one_is_not() -> None:
    async with pair(dispatcher(echo=echo), limits=Limits(idle_timeout_ms=150)) as (server, client, address):
        for _ in range(8):
            await client.invoke(address, Command(ECHO, {}))
            await asyncio.sleep(0.05)
            assert len(server.connections) == 1
        await asyncio.sleep(0.4)
        assert not server.connections


@pytest.mark.parametrize("last", [b"", b"\xff" * 8])
async def test_a_peer_that_never_reads_is_dropped_in_the_end(
    last: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """A connection closed with answers that its peer does not take would stay for ever, with all of them.
    `last`: it was closed as idle, or for a bad frame."""

    def much(request: Request) -> Reply:
        return Reply(body=bytes(1 << 20))

    limits = Limits(idle_timeout_ms=150, write_buffer_bytes=1 << 26)
    async with pair(dispatcher(echo=much), limits=limits) as (server, _, address):
        host, _, port = address.rpartition(":")
        _, writer = await asyncio.open_connection(host, int(port), limit=1)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(encode(Command(ECHO, {})) * 20 + last)
        async with asyncio.timeout(5):
            while not server.connections:
                await asyncio.sleep(0.001)
            while server.connections:
                await asyncio.sleep(0.01)
        writer.transport.abort()
    assert ("sent a bad frame" if last else "does not read its answers") in caplog.text


async def test_connections_above_the_limit_are_refused(caplog: pytest.LogCaptureFixture) -> None:
    async with pair(dispatcher(echo=echo), limits=Limits(max_connections=2)) as (server, client, address):
        others = [RemotingClient() for _ in range(2)]
        await client.invoke(address, Command(ECHO, {}))
        await others[0].invoke(address, Command(ECHO, {}))
        with pytest.raises(ConnectionLost):
            await others[1].invoke(address, Command(ECHO, {}))
        for _ in range(100):  # a client that tries for ever does not fill the log
            with pytest.raises(ConnectionLost):
                await others[1].invoke(address, Command(ECHO, {}))
        await others[0].close()
        while len(server.connections) > 1:
            await asyncio.sleep(0.001)
        assert (await others[1].invoke(address, Command(ECHO, {}, b"in"))).body == b"in"
        await others[1].close()
    assert caplog.text.count("refused: 2 connections are open already") == 1


async def test_connections_are_refused_before_there_are_no_files_for_the_store(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with pair(dispatcher(echo=echo)) as (_, client, address):
        assert (await client.invoke(address, Command(ECHO, {}, b"in"))).body == b"in"
        monkeypatch.setattr(resource, "getrlimit", lambda which: (8, 8))
        other = RemotingClient()
        with pytest.raises(ConnectionLost):
            await other.invoke(address, Command(ECHO, {}))
        assert (await client.invoke(address, Command(ECHO, {}, b"in"))).body == b"in"
        await other.close()
    assert "refused: this process may not open more files" in caplog.text


async def open_at(servers: list[RemotingServer], expected: list[int]) -> None:
    """Wait until each has so many connections, or fail."""
    async with asyncio.timeout(5):
        while [len(server.connections) for server in servers] != expected:
            await asyncio.sleep(0.001)


async def test_a_client_keeps_so_many_connections_and_closes_none_in_use() -> None:
    release = asyncio.Event()

    async def slow(request: Request) -> Reply:
        await release.wait()
        return Reply(body=b"late")

    servers = [RemotingServer(dispatcher(echo=echo, **{"async": slow}), "127.0.0.1", 0) for _ in range(6)]
    for server in servers:
        await server.start()
    client = RemotingClient(limits=Limits(max_connections=3))
    try:
        addresses = [f"127.0.0.1:{server.port}" for server in servers]
        held = asyncio.ensure_future(client.invoke(addresses[0], Command(ASYNC, {})))
        while not servers[0].connections:
            await asyncio.sleep(0.001)
        for address in addresses[1:]:
            await client.invoke(address, Command(ECHO, {}))
        await open_at(servers, [1, 0, 0, 0, 1, 1])
        release.set()
        assert (await held).body == b"late"
        await asyncio.gather(*(client.invoke(address, Command(ECHO, {})) for address in addresses[1:4]))
        await open_at(servers, [0, 1, 1, 1, 0, 0])
        assert (await client.invoke(addresses[1], Command(ECHO, {}, b"again"))).body == b"again"
    finally:
        await client.close()
        for server in servers:
            await server.stop()
