"""A client with credentials signs every request, whichever way it is sent; one without signs none."""

from __future__ import annotations

import pytest

from batonmq.net import Connection, Dispatcher, RemotingClient, RemotingServer, Reply, Request
from batonmq.protocol.frame import Command
from batonmq.protocol.headers.broker.admin import GetTopicStatsInfo
from batonmq.protocol.signing import Credentials, signed_by

CALLED, READY = int(GetTopicStatsInfo.code), 30_001
CREDENTIALS = Credentials("alice", "secret12")


@pytest.mark.parametrize("credentials", [None, CREDENTIALS])
async def test_each_way_of_sending_signs(credentials: Credentials | None) -> None:
    seen: list[Request] = []

    def handle(request: Request) -> Reply:
        seen.append(request)
        request.command.detach()
        return Reply()

    dispatcher = Dispatcher()
    dispatcher.on_code(CALLED, handle)
    dispatcher.on_code(READY, handle)
    server, client = RemotingServer(dispatcher, "127.0.0.1", 0), RemotingClient(credentials=credentials)
    await server.start()
    address = f"127.0.0.1:{server.port}"
    try:
        await client.call(address, GetTopicStatsInfo(topic="T"), [b"in ", b"parts"])
        await client.oneway(address, GetTopicStatsInfo(topic="T"), b"one way")
        for binary in (False, True):
            await client.invoke(address, Command(READY, {"b": "T"}, binary=binary), body=b"ready")
    finally:
        await client.close()
        await server.stop()
    assert len(seen) == 4
    for request in seen:
        ext = request.command.ext
        if credentials is None:
            assert "AccessKey" not in ext and "Signature" not in ext
        else:
            assert ext["AccessKey"] == "alice"
            assert signed_by("secret12", ext, request.command.body)


async def test_a_server_s_requests_to_its_clients_are_not_signed() -> None:
    """The client that answers has no users."""
    seen: list[dict[str, str]] = []

    def note(request: Request) -> Reply:
        seen.append(request.command.ext)
        return Reply()

    connections: list[Connection] = []
    ours, theirs = Dispatcher(), Dispatcher()
    ours.on_code(READY, lambda request: connections.append(request.connection) or Reply())
    theirs.on_code(READY, note)
    server = RemotingServer(ours, "127.0.0.1", 0)
    client = RemotingClient(credentials=CREDENTIALS, dispatcher=theirs)
    await server.start()
    try:
        await client.invoke(f"127.0.0.1:{server.port}", Command(READY))
        await connections[0].invoke(Command(READY, {"b": "T"}), 3_000)
    finally:
        await client.close()
        await server.stop()
    assert seen == [{"b": "T"}]
