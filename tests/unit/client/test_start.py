"""A client reports a wrong name server address when it starts: one clear line within seconds, all closed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from batonmq import Admin, Consumer, NetError, NoNameServer, Producer, QueueReader, sync
from batonmq.net.dispatch import Dispatcher, Reply
from batonmq.net.server import RemotingServer
from batonmq.protocol.codes import RequestCode
from batonmq.routing import name_servers

from .fakes import FakeCluster

SECONDS = 4.5
"""What a user waits at most; `name_servers.CONNECT_TIMEOUT_S` and what a slow machine adds."""


def consumer(namesrv: str) -> Consumer:
    made = Consumer("g", namesrv)
    made.subscribe("t", "*", lambda message: None)
    return made


CLIENTS: dict[str, Callable[[str], Any]] = {
    "producer": lambda namesrv: Producer("g", namesrv),
    "consumer": consumer,
    "reader": QueueReader,
    "admin": Admin,
}


@pytest.fixture
async def strange() -> AsyncIterator[dict[str, str]]:
    """Addresses where something else listens: what it is -> address."""

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async def http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with AsyncExitStack() as stack:
        found: dict[str, str] = {"nobody": "127.0.0.1:1", "an unknown host": "no-such-host.invalid:9876"}
        for name, handler in (("a silent port", silent), ("a web server", http)):
            server = await asyncio.start_server(handler, "127.0.0.1", 0)
            stack.push_async_callback(server.wait_closed)
            stack.callback(server.close)
            found[name] = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        broker = RemotingServer(Dispatcher(), "127.0.0.1", 0)
        await broker.start()
        stack.push_async_callback(broker.stop)
        found["a broker"] = f"127.0.0.1:{broker.port}"
        yield found


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("nobody", "Connection refused"),
        ("an unknown host", ""),
        ("a silent port", "no answer"),
        ("a web server", "connection"),
        ("a broker", "something listens there, but it is not a name server"),
    ],
)
async def test_a_wrong_address_is_reported_at_the_start(
    strange: dict[str, str], client: str, where: str, words: str
) -> None:
    before = {task for task in asyncio.all_tasks() if task is not asyncio.current_task()}
    began = time.monotonic()
    with pytest.raises(NoNameServer) as caught:
        async with CLIENTS[client](strange[where]):
            pass
    assert time.monotonic() - began < SECONDS
    line = str(caught.value)
    assert line.startswith(f"no name server answers ({strange[where]}: ") and "\n" not in line
    assert words in line and "; check the address, and that a name server runs there" in line
    assert isinstance(caught.value, NetError)
    assert {task for task in asyncio.all_tasks() if task is not asyncio.current_task()} <= before


async def test_all_addresses_are_named_and_one_that_answers_is_enough(strange: dict[str, str]) -> None:
    wrong = [strange["nobody"], strange["a silent port"]]
    with pytest.raises(NoNameServer) as caught:
        async with Producer("g", ";".join(wrong)):
            pass
    assert all(address in str(caught.value) for address in wrong)
    async with FakeCluster() as cluster:
        began = time.monotonic()
        async with Producer("g", [*wrong, *cluster.namesrv.split(";")]):
            pass
        assert time.monotonic() - began < 1


async def test_a_name_server_that_is_just_coming_up_is_waited_for() -> None:
    dispatcher = Dispatcher()
    dispatcher.on_code(RequestCode.GET_ROUTEINFO_BY_TOPIC, lambda request: Reply(code=17))
    first = RemotingServer(dispatcher, "127.0.0.1", 0)
    await first.start()
    port = first.port
    await first.stop()
    late = RemotingServer(dispatcher, "127.0.0.1", port)
    asyncio.get_running_loop().call_later(0.5, lambda: asyncio.ensure_future(late.start()))
    async with Producer("g", f"127.0.0.1:{port}"):
        pass
    await late.stop()


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("address", ["localhost", "localhost:", ":9876", "host:port", "host:70000", "a:1;b"])
async def test_what_is_not_an_address_is_reported_before_anything_else(client: str, address: str) -> None:
    with pytest.raises(ValueError, match=r"expected host:port, such as 127\.0\.0\.1:9876"):
        CLIENTS[client](address)


def test_clients_without_an_event_loop_tell_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(name_servers, "CONNECT_TIMEOUT_S", 0.5)
    for made in (sync.Producer("g", "127.0.0.1:1"), sync.QueueReader("127.0.0.1:1")):
        with pytest.raises(NoNameServer, match=r"127\.0\.0\.1:1: .*[Rr]efused"), made:
            pass
        with pytest.raises(RuntimeError, match="closed"):
            made.queues("t")
    consuming = sync.Consumer("g", "127.0.0.1:1")
    consuming.subscribe("t", "*", print)
    with pytest.raises(NoNameServer), consuming:
        pass


async def test_the_first_send_without_a_start_reports_it_within_its_timeout() -> None:
    producer = Producer("g", "127.0.0.1:1", send_timeout_ms=500)
    with pytest.raises(Exception, match=r"no name server answers \(127\.0\.0\.1:1: .*[Rr]efused"):
        from batonmq import Message

        await producer.send(Message("t", b"x"))
    await producer.close()
