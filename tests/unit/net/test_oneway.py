"""Requests that are not answered: what happens when the peer takes less than is sent."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from batonmq.net.client import RemotingClient
from batonmq.net.errors import CallTimeout
from batonmq.protocol.headers.broker.admin import GetTopicStatsInfo

BODY = bytes(100_000)
HEADER = GetTopicStatsInfo(topic="T")
PATIENCE_MS = 200.0


class SlowPeer:
    """Reads nothing until it may."""

    def __init__(self) -> None:
        self.may_read = asyncio.Event()
        self.taken = 0
        self.done = asyncio.Event()
        self.address = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self.may_read.wait()
        try:
            while data := await reader.read(1 << 20):
                self.taken += len(data)
        except ConnectionResetError:
            pass
        writer.close()
        self.done.set()


@asynccontextmanager
async def slow_peer() -> AsyncIterator[tuple[SlowPeer, RemotingClient]]:
    peer, client = SlowPeer(), RemotingClient()
    async with await asyncio.start_server(peer.serve, "127.0.0.1", 0) as server:
        peer.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield peer, client
        finally:
            await client.close()
            peer.may_read.set()
            await peer.done.wait()


async def fill(client: RemotingClient, address: str) -> int:
    """Send until the peer would have to read; how many were sent."""
    for sent in range(1_000):
        try:
            await client.oneway(address, HEADER, BODY, room_within_ms=PATIENCE_MS)
        except CallTimeout:
            return sent
    raise AssertionError("100 MB are buffered")


async def test_a_sender_waits_for_a_peer_that_does_not_read_and_close_for_one_that_continues() -> None:
    async with slow_peer() as (peer, client):
        sent = await fill(client, peer.address)
        assert sent > 10
        asyncio.get_running_loop().call_later(1.5, peer.may_read.set)
        await client.close()
        await peer.done.wait()
        assert peer.taken > sent * len(BODY)


async def test_close_says_what_a_peer_did_not_take(caplog: pytest.LogCaptureFixture) -> None:
    async with slow_peer() as (peer, client):
        await fill(client, peer.address)
        began = time.monotonic()
        with caplog.at_level(logging.WARNING):
            await client.close()
        assert time.monotonic() - began < 5
        (line,) = caplog.messages
        words = line.split()
        assert words[0] == peer.address and int(words[4]) > 1_000_000, line


async def test_a_sender_that_never_pauses_lets_the_loop_do_other_work() -> None:
    async with slow_peer() as (peer, client):
        peer.may_read.set()
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        await client.oneway(peer.address, HEADER, BODY)
        task = asyncio.ensure_future(other())
        for _ in range(100):
            await client.oneway(peer.address, HEADER, BODY, room_within_ms=PATIENCE_MS)
        task.cancel()
        assert turns >= 50
