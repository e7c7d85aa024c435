"""Floods and slow readers: the memory of the programs stays bounded and everybody else is served."""

from __future__ import annotations

import asyncio
import contextlib
import os
import struct
import time
from collections.abc import AsyncIterator, Iterator

import pytest
from tests.integration.group import TOPIC, Group, anonymous_mib

from batonmq.net import RemotingClient
from batonmq.protocol.codes import PullSysFlag, RequestCode
from batonmq.protocol.frame import Command, encode
from batonmq.protocol.ha_frames import Ack, SlaveHandshake
from batonmq.protocol.headers.broker.pull import PullMessage
from batonmq.protocol.headers.broker.send import SendMessageV2

MIB = 1 << 20
FLOOD_S = 2.0


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    with Group.running(tmp_path_factory.mktemp("group")) as made:
        yield made


def grown_mib(group: Group, before: dict[str, float]) -> dict[str, float]:
    return {name: anonymous_mib(pid) - before[name] for name, pid in group.pids.items()}


def memory(group: Group) -> dict[str, float]:
    return {name: anonymous_mib(pid) for name, pid in group.pids.items()}


async def open_to(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = address.rpartition(":")
    return await asyncio.open_connection(host, int(port))


@pytest.fixture
async def writers() -> AsyncIterator[list[asyncio.StreamWriter]]:
    """Connections that are to stay open; closed at the end."""
    opened: list[asyncio.StreamWriter] = []
    yield opened
    for writer in opened:
        await close(writer)


async def close(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


async def test_a_flood_of_garbage(group: Group) -> None:
    before = memory(group)
    deadline = time.monotonic() + FLOOD_S
    addresses = [*group.addresses.values(), group.ha_address]

    async def flood(address: str) -> int:
        count = 0
        while time.monotonic() < deadline:
            _, writer = await open_to(address)
            with contextlib.suppress(OSError):
                writer.write(os.urandom(64 * 1024))
                await writer.drain()
            await close(writer)
            count += 1
        return count

    counts = await asyncio.gather(*(flood(address) for address in addresses for _ in range(2)))
    assert min(counts) > 5
    grown = grown_mib(group, before)
    assert max(grown.values()) < 30, grown
    await group.check()


async def test_many_frames_that_never_end(group: Group, writers: list[asyncio.StreamWriter]) -> None:
    """Each promises 16 MiB and brings one: what came is held, what was promised is not."""
    before = memory(group)
    promised = struct.pack(">II", 16 * MIB - 8, 2) + b"{}" + bytes(MIB - 10)
    for address in group.addresses.values():
        for _ in range(10):
            _, writer = await open_to(address)
            writer.write(promised)
            await writer.drain()
            writers.append(writer)
    await asyncio.sleep(0.3)
    grown = grown_mib(group, before)
    assert max(grown.values()) < 40, grown
    await group.check()
    while writers:
        await close(writers.pop())
    await group.check()


async def test_a_client_that_asks_and_never_reads(group: Group, writers: list[asyncio.StreamWriter]) -> None:
    """It asks for messages as fast as it can; its requests are no longer taken, others are served."""
    client = RemotingClient()
    header = SendMessageV2(
        producer_group="p",
        topic="Large",
        default_topic="TBW102",
        default_topic_queue_nums=1,
        queue_id=0,
        sys_flag=0,
        born_timestamp=0,
        flag=0,
    )
    for _ in range(40):
        await client.call(group.addresses["broker"], header, os.urandom(200_000))
    await client.close()
    before = memory(group)
    pull = PullMessage(
        consumer_group="g",
        topic="Large",
        queue_id=0,
        queue_offset=0,
        max_msg_nums=32,
        sys_flag=PullSysFlag.SUBSCRIPTION,
        commit_offset=0,
        suspend_timeout_millis=0,
        sub_version=0,
        subscription="*",
    )
    route = encode(Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": TOPIC}))
    asked = {
        "broker": encode(Command(RequestCode.PULL_MESSAGE, pull.to_ext())),
        "namesrv": route,
        "controller": encode(Command(RequestCode.CONTROLLER_GET_METADATA_INFO)),
    }
    deadline = time.monotonic() + FLOOD_S

    async def ask(address: str, data: bytes) -> None:
        _, writer = await open_to(address)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writers.append(writer)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(asyncio.get_running_loop().time() + deadline - time.monotonic()):
                while True:
                    writer.write(data * 500)
                    await writer.drain()

    await asyncio.gather(*(ask(group.addresses[name], asked[name]) for name in asked for _ in range(4)))
    grown = grown_mib(group, before)
    # Four connections, each with write_buffer_bytes (4 MiB) and one answer more, and what two reads brought.
    assert max(grown.values()) < 80, grown
    await group.check()
    while writers:
        await close(writers.pop())
    await group.check()


async def test_a_slave_that_never_reads(group: Group, writers: list[asyncio.StreamWriter]) -> None:
    """The replication port sends no more than the socket takes."""
    before = memory(group)

    for number in range(5):
        _, writer = await open_to(group.ha_address)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(SlaveHandshake(100 + number).encode() + Ack(0).encode())
        writers.append(writer)
    await asyncio.sleep(0.2)
    await group.send(300, 20_000)
    grown = grown_mib(group, before)
    assert max(grown.values()) < 30, grown
    await group.check()
    while writers:
        await close(writers.pop())
    await group.check()
