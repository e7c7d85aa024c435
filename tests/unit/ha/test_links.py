"""Links between replicas: who may connect, forged bytes, and lines that break."""

import asyncio
import contextlib
import socket
import sys

import pytest

from batonmq.ha.config import HAConfig
from batonmq.protocol.ha_frames import Ack, SlaveHandshake

from .conftest import until


async def test_a_slave_takes_no_slaves(replicas):
    first, second, third = await replicas(3)
    await first.lead(1)
    await second.follow(first, 1)
    await third.follow(second, 1)
    await asyncio.sleep(0.1)
    assert not third.ha.following


async def raw(replica, data: bytes) -> bytes:
    """Send bytes to a replication port; returns what comes back until it closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", replica.ha.port)
    try:
        writer.write(data)
        async with asyncio.timeout(5):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n", b"\0" * 64, Ack(0).encode(), b"\xff" * 1000])
async def test_garbage_closes_the_connection_with_one_line(replicas, caplog, data):
    master, slave = await replicas(2)
    await master.lead(1)
    await raw(master, data)
    lines = [record for record in caplog.records if "replication port: 127.0.0.1:" in record.message]
    assert len(lines) == 1
    await slave.follow(master, 1)
    master.put(b"x")
    await until(lambda: slave.store.max_offset == master.store.max_offset)


async def test_a_forged_ack_confirms_nothing_3015(replicas):
    master, _ = await replicas(2)
    await master.lead(1, 1, 2)
    end = master.put(b"only here")
    await raw(master, SlaveHandshake(2).encode() + Ack(end + 1).encode())
    await raw(master, SlaveHandshake(9).encode() + Ack(0).encode() + Ack(end + 100).encode())
    assert master.store.confirm_offset == 0
    assert master.bodies() == []


async def test_one_link_per_broker_id(replicas):
    """A twin takes the place of the slave's link, and the slave, which connects again, that of the twin's."""
    master, slave = await replicas(2)
    await master.lead(1)
    await slave.follow(master, 1)
    await until(lambda: slave.ha.following)
    first = slave.ha.link
    twin_reader, twin = await asyncio.open_connection("127.0.0.1", master.ha.port)
    twin.write(SlaveHandshake(2).encode() + Ack(0).encode())
    async with asyncio.timeout(10):
        await twin_reader.read()  # to its end: the master closes the twin's connection
    twin.close()
    await until(lambda: slave.ha.following and len(master.ha.listener.links) == 1, 10)
    assert len(master.ha.replicas()) == 1
    assert first.closed and slave.ha.link is not first
    (link,) = master.ha.listener.links
    assert link.peer == slave.ha.link.local_address
    master.put(b"x")
    await until(lambda: slave.store.max_offset == master.store.max_offset)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's own patience can be set on Linux only")
@pytest.mark.parametrize(("lag_ms", "patience_ms"), [(100, 3_000), (15_000, 15_000)])
async def test_a_cut_line_ends_the_link_at_both_ends(replicas, lag_ms, patience_ms):
    """What the line does is seen in `make chaos`; that both kernels were asked is seen here."""
    master, slave = await replicas(2, HAConfig(ha_max_time_slave_not_catch_up=lag_ms))
    await master.lead(1)
    await slave.follow(master, 1)
    await until(lambda: slave.ha.following)
    for link in (slave.ha.link, *master.ha.listener.links):
        sock = link._transport.get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == patience_ms
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 1


async def test_a_master_that_does_not_answer_the_handshake_is_dialled_again(replicas):
    (slave,) = await replicas(1, HAConfig(ha_connect_timeout=100))
    received: list[bytes] = []

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.append(await reader.read(100))
        await reader.read()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    await slave.ha.become_slave(f"{host}:{port}", 2, 1)
    await until(lambda: len(received) > 1)
    server.close()


async def test_a_slave_says_once_that_it_follows_and_again_after_a_lost_link(replicas):
    followed = []
    master, slave = await replicas(2)
    slave.ha.on_followed = lambda: followed.append(slave.ha.following)
    await master.lead(1, 1, 2)
    await slave.follow(master, 1)
    await until(lambda: followed == [True])
    master.put(b"x")
    await until(lambda: slave.bodies() == [b"x"])
    assert followed == [True]
    slave.ha._follower.link.close("says the test")
    await until(lambda: len(followed) == 2)
    assert followed == [True, True]
