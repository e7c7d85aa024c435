"""Whatever a peer sends, it alone suffers: one log line, its connection closed, the others served."""

from __future__ import annotations

import asyncio
import contextlib
import random
import struct
import tracemalloc
from collections.abc import AsyncIterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from batonmq.net import Dispatcher, Limits, RemotingClient, RemotingServer, Reply, Request
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.frame import Command, FrameReader, encode
from batonmq.protocol.registry import Header

ECHO, BIG, TYPED = 30001, 30002, 30003
BIG_BODY = bytes(256 * 1024)
LIMITS = Limits(max_frame_bytes=64 * 1024, write_buffer_bytes=512 * 1024)


class Typed(Header):
    queue_id: int


Typed.code = TYPED  # type: ignore[assignment]  # not in the registry: the code is this test's own


def frame(header: bytes, body: bytes = b"", *, kind: int = 0, length: int | None = None) -> bytes:
    whole = 4 + len(header) + len(body) if length is None else length
    return struct.pack(">II", whole & 0xFFFFFFFF, kind << 24 | len(header)) + header + body


def binary(ext: bytes = b"", *, remark_length: int = 0, ext_length: int | None = None) -> bytes:
    head = struct.pack(">hbhiii", TYPED, 3, 500, 7, 0, remark_length)
    return frame(head + struct.pack(">i", len(ext) if ext_length is None else ext_length) + ext, kind=1)


GOOD = encode(Command(ECHO, {"k": "v"}, b"hello", opaque=5))
NOT_FRAMES = {
    "zero length": bytes(8),
    "negative length": frame(b"{}", length=-1),
    "most negative length": frame(b"{}", length=-(2**31)),
    "length beyond the limit": frame(b"{}", length=LIMITS.max_frame_bytes),
    "header longer than the frame": struct.pack(">II", 10, 4000) + bytes(10),
    "unknown serialisation": frame(b"{}", kind=7),
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "tls hello": bytes.fromhex("16030100c8010000c40303") + bytes(200),
    "text": b"hello, is this the broker?",
    "empty JSON header": frame(b""),
    "broken JSON": frame(b'{"code":'),
    "JSON list": frame(b"[1,2,3]"),
    "JSON without code": frame(b"{}"),
    "JSON code of the wrong type": frame(b'{"code":"x"}'),
    "JSON code beyond all bounds": frame(b'{"code":1%s}' % (b"0" * 400)),
    "JSON opaque beyond 32 bits": frame(b'{"code":1,"opaque":4294967296}'),
    "JSON code of 5000 digits": frame(b'{"code":1%s}' % (b"0" * 5000)),
    "JSON flag beyond 32 bits": frame(b'{"code":1,"flag":99999999999}'),
    "JSON that is not UTF-8": frame(b'{"code":1,"remark":"\xff\xfe"}'),
    "deeply nested JSON": frame(b'{"code":1,"extFields":' + b'{"a":' * 5000),
    "short binary header": frame(b"\0\1", kind=1),
    "binary remark beyond the header": binary(remark_length=1000),
    "binary remark of negative length": binary(remark_length=-5),
    "binary fields beyond the header": binary(ext_length=1000),
    "binary fields of negative length": binary(ext_length=-1),
}
BAD_REQUESTS = {
    "field beyond the fields": binary(struct.pack(">H", 400) + b"queueId"),
    "value beyond the fields": binary(struct.pack(">H7sI", 7, b"queueId", 2**31) + b"1"),
    "field that is not UTF-8": binary(struct.pack(">H", 2) + b"\xff\xfe" + struct.pack(">I", 1) + b"1"),
    "binary field missing": binary(),
    "JSON field missing": frame(b'{"code":%d,"opaque":7}' % TYPED),
    "field of 5000 digits": frame(
        b'{"code":%d,"opaque":7,"extFields":{"queueId":1%s}}' % (TYPED, b"0" * 5000)
    ),
    "JSON field that is not UTF-8": frame(
        b'{"code":%d,"opaque":7,"extFields":{"queueId":"\xff\xfe"}}' % TYPED
    ),
    "JSON fields that are a list": frame(b'{"code":%d,"opaque":7,"extFields":[1]}' % TYPED),
    "JSON fields that are a text": frame(b'{"code":%d,"opaque":7,"extFields":"queueId"}' % TYPED),
    "no JSON fields": frame(b'{"code":%d,"opaque":7,"extFields":null}' % TYPED),
    "field of the wrong type": frame(b'{"code":%d,"opaque":7,"extFields":{"queueId":"x"}}' % TYPED),
    "field nested deeply": frame(
        b'{"code":%d,"opaque":7,"extFields":{"queueId":%s%s}}' % (TYPED, b"[" * 200, b"]" * 200)
    ),
    "nested field": frame(b'{"code":%d,"opaque":7,"extFields":{"queueId":{"a":1}}}' % TYPED),
}


def echo(request: Request) -> Reply:
    return Reply(body=bytes(request.command.body))


@pytest.fixture
async def server() -> AsyncIterator[RemotingServer]:
    table = Dispatcher()
    table.on_code(ECHO, echo)
    table.on_code(BIG, lambda request: Reply(body=BIG_BODY))
    table.on(Typed, lambda request, header: Reply(body=b"%d" % header.queue_id))
    made = RemotingServer(table, "127.0.0.1", 0, limits=LIMITS)
    await made.start()
    yield made
    await made.stop()


async def send(server: RemotingServer, data: bytes, *, eof: bool = False) -> bytes:
    """What the server says to these bytes until it closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        writer.write(data)
        if eof:
            with contextlib.suppress(OSError):  # ENOTCONN: the server reset it first
                writer.write_eof()
        return await asyncio.wait_for(reader.read(), 5)
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


async def still_serves(server: RemotingServer) -> None:
    client = RemotingClient()
    answer = await client.invoke(f"127.0.0.1:{server.port}", Command(ECHO, {}, b"still here"))
    assert answer.body == b"still here"
    await client.close()
    while server.connections:
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("name", NOT_FRAMES)
async def test_what_is_not_a_frame_closes_the_connection_with_one_line(
    name: str, server: RemotingServer, caplog: pytest.LogCaptureFixture
) -> None:
    assert await send(server, NOT_FRAMES[name]) == b""
    lines = [record for record in caplog.records if record.name.startswith("batonmq")]
    assert len(lines) == 1 and "bad frame" in lines[0].getMessage() and lines[0].exc_info is None
    await still_serves(server)


async def test_a_flood_of_what_is_not_a_frame_is_a_line_of_each_kind(
    server: RemotingServer, caplog: pytest.LogCaptureFixture
) -> None:
    kinds = [bytes(8), NOT_FRAMES["http"], NOT_FRAMES["broken JSON"]]
    unknown = [encode(Command(20_000 + number, {}, opaque=1)) for number in range(1000)]
    for number in range(1000):
        assert await send(server, kinds[number % len(kinds)]) == b""
    answers = FrameReader().feed(await send(server, b"".join(unknown), eof=True))
    assert len(answers) == 1000
    lines = [record.getMessage() for record in caplog.records if record.name.startswith("batonmq")]
    assert sum("bad frame" in line for line in lines) == len(kinds), "one client's, whatever its ports were"
    assert sum("not supported" in line for line in lines) == 1
    assert len(lines) == len(kinds) + 1
    await still_serves(server)


@pytest.mark.parametrize("name", BAD_REQUESTS)
async def test_a_frame_with_a_bad_request_is_answered_and_the_connection_continues(
    name: str, server: RemotingServer
) -> None:
    answers = FrameReader().feed(await send(server, BAD_REQUESTS[name] + GOOD, eof=True))
    assert [each.opaque for each in answers] == [7, 5]
    assert answers[0].code == ResponseCode.SYSTEM_ERROR and answers[0].remark
    assert answers[1].body == b"hello"


async def test_frames_before_a_bad_one_were_answered(server: RemotingServer) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(GOOD)
    assert len(FrameReader().feed(await reader.read(1000))) == 1
    writer.write(bytes(8))
    assert await reader.read() == b""
    writer.close()


@pytest.mark.parametrize("cut", range(1, len(GOOD)))
async def test_a_truncated_frame_is_not_a_request(cut: int, server: RemotingServer) -> None:
    assert await send(server, GOOD[:cut], eof=True) == b""
    assert not server.connections


async def test_bytes_one_by_one_make_a_frame(server: RemotingServer) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    for _ in range(2):
        for byte in GOOD:
            writer.write(bytes([byte]))
            await asyncio.sleep(0)
        (answer,) = FrameReader().feed(await reader.read(1000))
        assert (answer.opaque, answer.body) == (5, b"hello")
    writer.close()


async def test_many_frames_in_one_write_are_all_answered_in_order(server: RemotingServer) -> None:
    data = b"".join(encode(Command(ECHO, {}, b"%d" % n, opaque=n)) for n in range(5000))
    answers = FrameReader().feed(await exchange(server, data, 5000))
    assert [bytes(each.body) for each in answers] == [b"%d" % n for n in range(5000)]


async def exchange(server: RemotingServer, data: bytes, count: int) -> bytes:
    """Send and read until `count` answers are there."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(data)
    frames, got = FrameReader(), bytearray()
    seen = 0
    while seen < count:
        chunk = await asyncio.wait_for(reader.read(1 << 20), 5)
        assert chunk
        got += chunk
        seen += len(frames.feed(chunk))
    writer.close()
    return bytes(got)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(min_size=1, max_size=300), prefix=st.booleans())
async def test_random_bytes_do_no_harm(data: bytes, prefix: bool, server: RemotingServer) -> None:
    await send(server, GOOD + data if prefix else data, eof=True)
    assert not server.connections


async def test_mutated_frames_do_no_harm(server: RemotingServer) -> None:
    random_ = random.Random(7)
    samples = [GOOD, binary(struct.pack(">H7sI", 7, b"queueId", 1) + b"1"), *BAD_REQUESTS.values()]
    for _ in range(150):
        mutated = bytearray(random_.choice(samples))
        for _ in range(random_.randint(1, 4)):
            mutated[random_.randrange(len(mutated))] = random_.randrange(256)
        await send(server, bytes(mutated), eof=True)
    await still_serves(server)


async def test_a_slow_reader_is_not_served_ahead_and_memory_stays_bounded(server: RemotingServer) -> None:
    loop = asyncio.get_running_loop()
    requests = 2000  # 500 MB of answers
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1 << 16)
    tracemalloc.start()
    writer.write(b"".join(encode(Command(BIG, {}, opaque=n)) for n in range(requests)))
    await asyncio.sleep(0.3)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    (connection,) = server.connections
    assert connection.congested
    assert peak < 24 * 1024 * 1024, peak
    await still_served_beside(server)
    frames, seen, started = FrameReader(), 0, loop.time()
    while seen < requests:
        seen += len(frames.feed(await asyncio.wait_for(reader.read(1 << 20), 5)))
        assert loop.time() - started < 60
    writer.close()


async def still_served_beside(server: RemotingServer) -> None:
    client = RemotingClient()
    answer = await client.invoke(f"127.0.0.1:{server.port}", Command(ECHO, {}, b"beside"))
    assert answer.body == b"beside"
    await client.close()


async def test_an_endless_unfinished_frame_is_held_to_the_limit(server: RemotingServer) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    size = LIMITS.max_frame_bytes - 8
    writer.write(struct.pack(">II", size, 2) + b"{}" + bytes(size // 2))
    await asyncio.sleep(0.05)
    (connection,) = server.connections
    assert connection._reader.held <= LIMITS.max_frame_bytes
    writer.close()
    assert await reader.read() == b""


async def test_a_client_survives_a_hostile_server() -> None:
    async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(b"\xff" * 100)
        await writer.drain()
        writer.close()

    hostile = await asyncio.start_server(babble, "127.0.0.1", 0)
    port = hostile.sockets[0].getsockname()[1]
    client = RemotingClient()
    for _ in range(2):
        with pytest.raises(Exception, match="connection"):
            await client.invoke(f"127.0.0.1:{port}", Command(ECHO, {}))
    await client.close()
    hostile.close()
    await hostile.wait_closed()
