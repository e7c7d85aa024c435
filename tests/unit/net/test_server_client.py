"""Server and client against each other, on real sockets."""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
import time

import pytest
from tests.unit.net.pair import ASYNC, BUG, ECHO, LATER, NEVER, PARTS, REFUSE, TYPED, dispatcher, echo, pair

from batonmq.net import (
    CallTimeout,
    ConnectFailed,
    Connection,
    ConnectionLost,
    Dispatcher,
    Interceptor,
    RemotingClient,
    RemotingServer,
    Reply,
    Request,
)
from batonmq.net.tls import TlsConfig, client_context
from batonmq.protocol.codes import FLAG_ONEWAY, FLAG_RESPONSE, ResponseCode
from batonmq.protocol.errors import MQError, TopicNotExistError
from batonmq.protocol.frame import Command, FrameReader, encode
from batonmq.protocol.registry import Header


class TypedReply(Header):
    doubled: int


class Typed(Header):
    queue_id: int


Typed.code = TYPED  # type: ignore[assignment]  # not in the registry: the code is this test's own
Typed.response = TypedReply


@pytest.mark.parametrize("binary", [False, True])
async def test_an_answer_comes_in_the_serialisation_of_its_request(binary: bool) -> None:
    async with pair(dispatcher(echo=echo)) as (_, client, address):
        answer = await client.invoke(address, Command(ECHO, {"a": "ü"}, b"body", binary=binary, remark="r"))
        assert (answer.code, answer.binary, answer.ext) == (0, binary, {"a": "ü"})
        assert (bytes(answer.body), answer.remark, answer.flag) == (b"body", "r", FLAG_RESPONSE)


async def test_many_calls_share_one_connection_and_find_their_callers() -> None:
    async with pair(dispatcher(echo=echo)) as (server, client, address):
        bodies = [b"%d" % number for number in range(500)]
        answers = await asyncio.gather(*(client.invoke(address, Command(ECHO, {}, body)) for body in bodies))
        assert [bytes(answer.body) for answer in answers] == bodies
        assert len(server.connections) == 1


async def test_answers_that_took_long_leave_before_the_next_request_is_handled() -> None:
    """The peer goes on with them meanwhile."""
    loop, left = asyncio.get_running_loop(), set[int]()

    def slow(request: Request) -> Reply:
        time.sleep(0.002)
        left.add(waiting())
        return Reply(body=b"x")

    def waiting() -> int:
        try:
            return len(peer.recv(1 << 16, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except BlockingIOError:
            return 0

    async with pair(dispatcher(echo=slow)) as (_, _, address):
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port))) as peer:
            peer.setblocking(False)
            await loop.sock_sendall(peer, b"".join(encode(Command(ECHO, {}, opaque=n)) for n in range(3)))
            reader, opaques = FrameReader(1 << 20), list[int]()
            while len(opaques) < 3:
                await asyncio.sleep(0.01)
                if waiting():
                    opaques += [answer.opaque for answer in reader.feed(peer.recv(1 << 16))]
        assert opaques == [0, 1, 2]
        assert len(left) == 3


async def test_a_peer_that_is_gone_before_its_slow_answers_disturbs_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def slow(request: Request) -> Reply:
        time.sleep(0.002)
        return Reply(body=bytes(100_000))

    async with pair(dispatcher(echo=slow)) as (server, client, address):
        host, _, port = address.rpartition(":")
        for _ in range(5):
            with socket.create_connection((host, int(port))) as peer:
                peer.sendall(b"".join(encode(Command(ECHO, {}, opaque=n)) for n in range(20)))
                reset = struct.pack("ii", 1, 0)
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
            await asyncio.sleep(0.01)
        while server.connections:
            await asyncio.sleep(0.001)
        assert (await client.invoke(address, Command(ECHO, {}))).code == 0
    assert not [record for record in caplog.records if record.levelname in ("ERROR", "CRITICAL")]


@pytest.mark.parametrize("reset", [False, True])
async def test_an_error_says_that_the_peer_ended_the_connection(reset: bool) -> None:
    async with pair(dispatcher(later=lambda request: None)) as (server, client, address):
        call = asyncio.ensure_future(client.invoke(address, Command(LATER, {})))
        while not server.connections:
            await asyncio.sleep(0.001)
        (accepted,) = server.connections
        assert accepted._transport is not None
        if reset:
            sock = accepted._transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        accepted.abort()
        with pytest.raises(ConnectionLost) as caught:
            await call
        assert caught.value.by_peer


async def test_a_call_on_a_connection_that_the_peer_ended_before_says_so() -> None:
    """A server that refuses a connection ends it between the connect and the call."""
    async with pair(dispatcher(echo=lambda request: Reply())) as (server, client, address):
        await client.invoke(address, Command(ECHO, {}))
        connection = client.connected(address)
        assert connection is not None
        (accepted,) = server.connections
        accepted.abort()
        await client.lost(address)
        with pytest.raises(ConnectionLost) as caught:
            await connection.invoke(Command(ECHO, {}), 1_000)
        assert caught.value.by_peer


async def test_an_error_says_that_this_side_ended_the_connection() -> None:
    async with pair(dispatcher(later=lambda request: None)) as (_, client, address):
        call = asyncio.ensure_future(client.invoke(address, Command(LATER, {})))
        while client.connected(address) is None:  # a server accepts before its client knows of it
            await asyncio.sleep(0.001)
        client.drop(address)
        with pytest.raises(ConnectionLost) as caught:
            await call
        assert not caught.value.by_peer


async def test_a_dropped_address_ends_the_attempt_to_connect_to_it() -> None:
    """As when a client begins to send to a master that is cut off, and then learns of the new master."""
    accepted: asyncio.Queue[None] = asyncio.Queue()

    async def says_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.put_nowait(None)
        await reader.read()
        writer.close()

    async with await asyncio.start_server(says_nothing, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        address = f"{host}:{port}"
        client = RemotingClient(tls=client_context(TlsConfig(enable=True)), connect_timeout_ms=60_000)
        try:
            call = asyncio.ensure_future(client.invoke(address, Command(ECHO, {}), timeout_ms=60_000))
            await accepted.get()  # the TLS handshake waits for the server's part
            client.drop(address)
            later = asyncio.ensure_future(client.invoke(address, Command(ECHO, {}), timeout_ms=60_000))
            with pytest.raises(ConnectFailed, match="given up") as caught:
                await asyncio.wait_for(call, 10)
            assert not caught.value.sent
            await accepted.get()  # a later call connects again
            client.drop(address)
            with pytest.raises(ConnectFailed):
                await asyncio.wait_for(later, 10)
        finally:
            await client.close()


async def test_a_typed_call_decodes_headers_on_both_sides() -> None:
    table = Dispatcher()
    table.on(Typed, lambda request, header: Reply(TypedReply(doubled=2 * header.queue_id), b"x"))
    async with pair(table) as (_, client, address):
        response = await client.call(address, Typed(queue_id=21))
        assert response.header == TypedReply(doubled=42)
        assert response.body == b"x"
        with pytest.raises(MQError, match="queueId") as caught:
            bad = await client.invoke(address, Command(TYPED, {}))
            raise MQError(bad.code, bad.remark)
        assert caught.value.code == ResponseCode.SYSTEM_ERROR


async def test_a_handler_may_answer_later_or_be_a_coroutine() -> None:
    held: list[Request] = []

    async def slow(request: Request) -> Reply:
        await asyncio.sleep(0.01)
        return Reply(body=b"slow")

    async with pair(dispatcher(later=held.append, **{"async": slow})) as (server, client, address):
        later = asyncio.ensure_future(client.invoke(address, Command(LATER, {})))
        assert (await client.invoke(address, Command(ASYNC, {}))).body == b"slow"
        (connection,) = server.connections
        assert not later.done() and list(connection.in_flight) == held
        held[0].reply(Reply(body=b"late"))
        assert (await later).body == b"late"
        assert not connection.in_flight
        with pytest.raises(RuntimeError, match="twice"):
            held[0].reply(Reply())


async def test_a_body_of_several_buffers_arrives_as_one() -> None:
    parts = [memoryview(b"ab"), b"", bytearray(b"cd"), memoryview(bytes(100_000))]
    async with pair(dispatcher(parts=lambda request: Reply(body=parts))) as (_, client, address):
        assert bytes((await client.invoke(address, Command(PARTS, {}))).body) == b"abcd" + bytes(100_000)


async def test_an_error_raised_by_a_handler_reaches_the_caller_as_the_same_error() -> None:
    def refuse(request: Request) -> Reply:
        raise MQError(ResponseCode.TOPIC_NOT_EXIST, "no such topic", {"nextBeginOffset": "7"})

    table = Dispatcher()
    table.on(Typed, lambda request, header: refuse(request))
    async with pair(table) as (_, client, address):
        with pytest.raises(TopicNotExistError, match="no such topic") as caught:
            await client.call(address, Typed(queue_id=1))
        assert caught.value.ext == {"nextBeginOffset": "7"}


async def test_a_bug_in_a_handler_is_logged_and_answered_and_the_connection_lives_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def bug(request: Request) -> Reply:
        raise ZeroDivisionError("oops")

    async def async_bug(request: Request) -> Reply:
        raise ZeroDivisionError("oops")

    async with pair(dispatcher(bug=bug, echo=echo, **{"async": async_bug})) as (server, client, address):
        for code in (BUG, ASYNC):
            answer = await client.invoke(address, Command(code, {}))
            assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "ZeroDivisionError: oops")
        assert (await client.invoke(address, Command(ECHO, {}, b"on"))).body == b"on"
        assert len(server.connections) == 1
    assert (
        sum("Traceback" in (record.exc_text or "Traceback") for record in caplog.records if record.exc_info)
        == 2
    )


@pytest.mark.parametrize("binary", [False, True])
async def test_an_unknown_code_is_answered_with_rocketmqs_words(binary: bool) -> None:
    async with pair(Dispatcher()) as (_, client, address):
        answer = await client.invoke(address, Command(12345, {}, binary=binary))
        assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        assert answer.remark == " request type 12345 not supported"


async def test_a_oneway_request_is_never_answered() -> None:
    seen: list[int] = []

    def handler(request: Request) -> Reply:
        seen.append(request.command.opaque)
        if request.command.ext.get("fail"):
            raise MQError(ResponseCode.SYSTEM_ERROR)
        return Reply(body=b"unwanted")

    async with pair(dispatcher(refuse=handler, echo=echo)) as (server, _, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        for ext in ({}, {"fail": "1"}):
            for code in (REFUSE, 12345):
                writer.write(encode(Command(code, ext, flag=FLAG_ONEWAY, opaque=77)))
        writer.write(encode(Command(ECHO, {}, opaque=78)))
        (answer,) = FrameReader().feed(await reader.read(1000))
        assert answer.opaque == 78 and seen == [77, 77]
        assert not next(iter(server.connections)).in_flight
        writer.close()
        await writer.wait_closed()


async def test_a_server_calls_its_client_over_the_same_connection() -> None:
    async def ask_back(request: Request) -> Reply:
        response = await request.connection.call(Typed(queue_id=4))
        assert isinstance(response.header, TypedReply)
        return Reply(body=b"%d" % response.header.doubled)

    on_client = Dispatcher()
    on_client.on(Typed, lambda request, header: Reply(TypedReply(doubled=header.queue_id * 2)))
    async with pair(dispatcher(**{"async": ask_back}), client_dispatcher=on_client) as (_, client, address):
        assert (await client.invoke(address, Command(ASYNC, {}))).body == b"8"


async def test_calls_time_out_each_by_its_own_time() -> None:
    async with pair(dispatcher(never=lambda request: None, echo=echo)) as (_, client, address):
        await client.invoke(address, Command(ECHO, {}))  # connecting would count too
        started = asyncio.get_running_loop().time()
        long = asyncio.ensure_future(client.invoke(address, Command(NEVER, {}), timeout_ms=200))
        short = asyncio.ensure_future(client.invoke(address, Command(NEVER, {}), timeout_ms=50))
        with pytest.raises(CallTimeout) as caught:
            await short
        assert caught.value.address == address
        assert 0.045 <= asyncio.get_running_loop().time() - started < 0.19 and not long.done()
        with pytest.raises(CallTimeout):
            await long
        assert (await client.invoke(address, Command(ECHO, {}, b"x"))).body == b"x"


async def test_a_silent_server_is_left_with_one_line_however_many_calls_wait(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("batonmq.net.connection._SILENT_CALL_MS", 50)
    async with pair(dispatcher(never=lambda request: None, echo=echo)) as (_, client, address):
        await client.invoke(address, Command(ECHO, {}))
        calls = [client.invoke(address, Command(NEVER, {}), timeout_ms=60) for _ in range(20)]
        ended = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(each, CallTimeout | ConnectionLost) for each in ended)
    assert len([line for line in caplog.messages if "sent nothing for" in line]) == 1


async def test_a_cancelled_call_is_forgotten() -> None:
    async with pair(dispatcher(never=lambda request: None, echo=echo)) as (_, client, address):
        await client.invoke(address, Command(ECHO, {}))
        call = asyncio.ensure_future(client.invoke(address, Command(NEVER, {})))
        await asyncio.sleep(0)
        connection = client.connected(address)
        assert connection is not None and len(connection._calls) == 1
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert len(connection._calls) == 0


async def test_no_listener_means_connect_failed() -> None:
    server = RemotingServer(Dispatcher(), "127.0.0.1", 0)
    await server.start()
    address = f"127.0.0.1:{server.port}"
    await server.stop()
    client = RemotingClient()
    with pytest.raises(ConnectFailed) as caught:
        await client.invoke(address, Command(ECHO, {}))
    assert caught.value.address == address and not caught.value.sent
    for wrong in ("nonsense", "host:", "host:99999", ":1"):
        with pytest.raises(ConnectFailed, match="host:port"):
            await client.invoke(wrong, Command(ECHO, {}))
    await client.close()


async def test_a_lost_connection_fails_its_calls_and_the_next_call_reconnects() -> None:
    async with pair(dispatcher(never=lambda request: None, echo=echo)) as (server, client, address):
        call = asyncio.ensure_future(client.invoke(address, Command(NEVER, {})))
        while not server.connections:
            await asyncio.sleep(0.001)
        next(iter(server.connections)).close()
        with pytest.raises(ConnectionLost) as caught:
            await call
        assert caught.value.address == address
        assert (await client.invoke(address, Command(ECHO, {}, b"again"))).body == b"again"
        client.drop(address)
        assert client.connected(address) is None
        assert (await client.invoke(address, Command(ECHO, {}, b"third"))).body == b"third"


async def test_concurrent_first_calls_make_one_connection() -> None:
    closed: list[Connection] = []
    table = dispatcher(echo=echo)
    table.intercept(Interceptor(closed=closed.append))
    async with pair(table) as (server, client, address):
        await asyncio.gather(*(client.invoke(address, Command(ECHO, {})) for _ in range(20)))
        assert len(server.connections) == 1
        await client.close()
        while not closed:
            await asyncio.sleep(0.001)
        with pytest.raises(ConnectionLost):
            await client.invoke(address, Command(ECHO, {}))
    assert len(closed) == 1


async def test_handlers_that_outlive_their_connection_end_with_the_server() -> None:
    ended = asyncio.Event()

    async def slow(request: Request) -> Reply:
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()
        return Reply()

    async with pair(dispatcher(**{"async": slow})) as (server, client, address):
        call = asyncio.ensure_future(client.invoke(address, Command(ASYNC, {})))
        while not any(each.in_flight for each in server.connections):
            await asyncio.sleep(0.001)
        client.drop(address)
        with pytest.raises(ConnectionLost):
            await call
        while server.connections:
            await asyncio.sleep(0.001)
        assert not ended.is_set()
    assert ended.is_set()


async def test_stop_drains_what_is_in_flight() -> None:
    async def slow(request: Request) -> Reply:
        await asyncio.sleep(0.05)
        return Reply(body=b"done")

    server = RemotingServer(dispatcher(**{"async": slow}), "127.0.0.1", 0)
    await server.start()
    client = RemotingClient()
    call = asyncio.ensure_future(client.invoke(f"127.0.0.1:{server.port}", Command(ASYNC, {})))
    while not any(connection.in_flight for connection in server.connections):
        await asyncio.sleep(0.001)
    await server.stop(drain_ms=1000)
    assert (await call).body == b"done"
    await client.close()


async def test_stop_without_drain_ends_calls_at_once() -> None:
    async def slow(request: Request) -> Reply:
        await asyncio.sleep(60)
        return Reply()

    server = RemotingServer(dispatcher(**{"async": slow}), "127.0.0.1", 0)
    await server.start()
    client = RemotingClient()
    call = asyncio.ensure_future(client.invoke(f"127.0.0.1:{server.port}", Command(ASYNC, {})))
    while not any(connection.in_flight for connection in server.connections):
        await asyncio.sleep(0.001)
    await server.stop()
    answer = await call
    assert answer.code == ResponseCode.SYSTEM_BUSY
    await client.close()


async def test_a_code_has_one_handler() -> None:
    table = dispatcher(echo=echo)
    with pytest.raises(ValueError, match="already"):
        table.on_code(ECHO, echo)


async def test_a_taken_port_is_an_os_error() -> None:
    async with pair(Dispatcher()) as (server, _, _):
        with pytest.raises(OSError, match="in use"):
            await RemotingServer(Dispatcher(), "127.0.0.1", server.port).start()


async def test_a_connection_in_a_log_line_is_its_peer() -> None:
    shown: list[str] = []

    def look(request: Request) -> Reply:
        shown.append(f"{request.connection}")
        return Reply()

    dispatcher = Dispatcher()
    dispatcher.on_code(ECHO, look)
    async with pair(dispatcher) as (_, client, address):
        await client.invoke(address, Command(ECHO))
        assert shown[0].startswith("127.0.0.1:") and str(client.connected(address)) == address


@pytest.mark.parametrize(
    "address", ["", "host", "host:", ":1", "host:one", "host:70000", "host:-1", "host:²"]
)
async def test_a_malformed_address_is_refused_before_connecting(address: str) -> None:
    client = RemotingClient()
    with pytest.raises(ConnectFailed, match="not an address of the form host:port"):
        await client.invoke(address, Command(ECHO))
    await client.close()


async def test_lost_returns_when_the_connection_has_ended() -> None:
    dispatcher = Dispatcher()
    dispatcher.on_code(ECHO, echo)
    async with pair(dispatcher) as (server, client, address):
        await asyncio.wait_for(client.lost(address), 1)  # there is none yet
        await client.invoke(address, Command(ECHO))
        given_up = asyncio.ensure_future(client.lost(address))
        waiting = [asyncio.ensure_future(client.lost(address)) for _ in range(2)]
        await asyncio.sleep(0.01)
        given_up.cancel()
        assert not any(task.done() for task in waiting)
        for connection in list(server.connections):
            connection.close()
        await asyncio.wait_for(asyncio.gather(*waiting), 1)
        await client.invoke(address, Command(ECHO))
        last = asyncio.ensure_future(client.lost(address))
        await asyncio.sleep(0.01)
        await client.close()
        await asyncio.wait_for(last, 1)


@pytest.mark.skipif(sys.platform != "linux", reason="the TCP timeout can be set on Linux only")
async def test_a_client_sets_the_tcp_timeout_of_its_connections() -> None:
    """Its effect is tested by `make chaos`; here, that the socket options are set."""
    server = RemotingServer(Dispatcher(), "127.0.0.1", 0)
    await server.start()
    address = f"127.0.0.1:{server.port}"
    client = RemotingClient(tcp_timeout_ms=2_500)
    try:
        with pytest.raises(MQError):
            await client.call(address, Typed(queue_id=1))
        connection = client.connected(address)
        assert connection is not None
        sock = connection._transport.get_extra_info("socket")  # type: ignore[union-attr]
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 2_500
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    finally:
        await client.close()
        await server.stop()
