"""ClassicHAService with real stores over loopback sockets."""

import asyncio
import contextlib
import random
import struct

import pytest

from batonmq.ha import follower
from batonmq.ha.classic import master_link
from batonmq.ha.config import HAConfig
from batonmq.ha.security import security_of
from batonmq.net.tls import TlsConfig

from ..conftest import until
from .conftest import FILE_SIZE

QUICK = HAConfig(ha_send_heartbeat_interval=100, ha_housekeeping_interval=600, ha_connect_timeout=200)


async def test_a_slave_copies_dispatches_and_acknowledges(replicas):
    master, slave = await replicas(2)
    master.ha.serve()
    master.put(b"one", b"two")
    slave.ha.follow(master.address)
    await until(lambda: master.ha.acked_by(2) == master.store.max_offset)
    end = master.put(b"three")
    assert master.ha.acked_by(2) < end, "not acknowledged before the slave has it"
    await until(lambda: master.ha.acked_by(2) == end)
    assert slave.log() == master.log()
    assert slave.bodies() == [b"one", b"two", b"three"]
    (status,) = master.ha.replicas()
    assert (status.broker_id, status.ack_offset, status.next_offset, status.in_sync) == (-1, end, end, True)
    assert slave.ha.following
    assert slave.ha.master().address == master.address
    assert master.ha.acked_by(3) == -1


async def test_an_empty_slave_begins_with_the_last_file(replicas):
    master, slave = await replicas(2)
    master.ha.serve()
    for number in range(150):
        master.put(bytes([number]) * 1000)
    begin = master.store.max_offset - master.store.max_offset % FILE_SIZE
    assert begin > 0
    slave.ha.follow(master.address)
    await until(lambda: slave.store.max_offset == master.store.max_offset)
    assert slave.store.min_offset == begin
    assert slave.log() == master.log(begin)
    bounds = slave.store.queue_bounds("T", 0)
    assert bounds.max_offset == 150
    assert slave.bodies(begin=bounds.min_offset) == master.bodies()[bounds.min_offset :]


async def test_an_empty_slave_gets_the_whole_log_if_the_master_says_so(replicas):
    master, slave = await replicas(2, HAConfig(ha_send_whole_log=True))
    master.ha.serve()
    for number in range(150):
        master.put(bytes([number]) * 1000)
    slave.ha.follow(master.address)
    await until(lambda: slave.store.max_offset == master.store.max_offset)
    assert slave.log() == master.log()
    await until(lambda: len(slave.bodies()) == 150)


async def test_a_slave_that_returns_continues_where_it_was(replicas):
    master, slave = await replicas(2)
    master.ha.serve()
    slave.ha.follow(master.address)
    for turn in range(5):
        end = master.put(*(random.Random(turn).randbytes(700) for _ in range(40)))
        await until(lambda end=end: slave.store.max_offset == end)
        await slave.restart(crash=turn % 2 == 0)
        master.put(b"meanwhile")
        slave.ha.follow(master.address)
    await until(lambda: slave.store.max_offset == master.store.max_offset)
    assert slave.log() == master.log()
    assert slave.bodies() == master.bodies()


async def test_a_slave_with_half_a_record_continues_in_the_middle_of_it(replicas):
    master, slave = await replicas(2)
    master.ha.serve()
    master.put(b"whole")
    end = master.put(b"half" * 1000)
    slave.store.append_raw(0, memoryview(master.log()[: end - 2000]))
    slave.store.dispatch()
    slave.ha.follow(master.address)
    await until(lambda: slave.store.max_offset == end)
    assert slave.log() == master.log()
    assert slave.bodies() == master.bodies()


async def test_a_longer_log_than_the_masters_is_refused_by_both(replicas, caplog):
    master, slave = await replicas(2, QUICK)
    master.ha.serve()
    slave.ha.follow(master.address)
    kept = master.put(b"kept")
    end = master.put(b"lost" * 100)
    await until(lambda: slave.store.max_offset == end)
    before = slave.log()
    await slave.ha.stop()
    master.store.truncate(kept)  # a power cut
    await slave.restart()
    slave.ha.follow(master.address)
    await until(lambda: "the master does not send bytes" in caplog.text or "lost what" in caplog.text)
    assert master.ha.acked_by(2) <= kept
    # The master goes on, to beyond the end of the slave's log, and still nothing is merged.
    master.put(*(b"other" * 100 for _ in range(5)))
    await until(lambda: "have different histories" in caplog.text, 20)
    await asyncio.sleep(0.1)
    assert slave.log() == before
    assert not slave.ha.following
    assert master.ha.acked_by(2) <= kept
    assert "move its store directory away" in caplog.text


@pytest.mark.parametrize("body", [b"x" * 300, b"y" * 20_000], ids=["short", "long"])
async def test_logs_that_differ_only_in_the_store_time_are_not_merged(replicas, caplog, body):
    master, slave = await replicas(2, QUICK)
    for replica in (master, slave):
        replica.ha.serve()
        replica.put(b"common start of another store time")
        replica.put(body)
        await asyncio.sleep(0.005)
    master.put(body)
    await slave.restart()
    before = slave.log()
    slave.ha.follow(master.address)
    await until(lambda: "have different histories" in caplog.text)
    assert slave.log() == before
    assert master.ha.acked_by(2) == -1 or master.ha.acked_by(2) < len(before)


async def test_a_slave_that_lacks_deleted_files_is_asked_to_start_over(replicas, caplog):
    master, slave = await replicas(2, QUICK)
    master.ha.serve()
    slave.ha.follow(master.address)
    end = master.put(b"early")
    await until(lambda: slave.store.max_offset == end)
    await slave.restart()
    for _ in range(150):
        master.put(b"z" * 1000)
    for path in master.store._log.files.drop_first(1):
        path.unlink()
    assert master.store.min_offset > end
    slave.ha.follow(master.address)
    await until(lambda: "what lies between is deleted" in caplog.text)
    assert slave.store.max_offset == end
    assert not slave.ha.following


async def test_many_slaves_and_the_copies_they_make(replicas):
    master, *slaves = await replicas(4)
    master.ha.serve()
    master.put(b"before")
    for slave in slaves[:2]:
        slave.ha.follow(master.address)
    await until(lambda: master.ha.in_sync_replicas == 3)
    # From one host, a link may be a second one of the same slave until it acknowledges something later.
    end = master.put(b"after")
    await until(lambda: master.ha.acked_by(3) == end)
    assert master.ha.acked_by(4) == -1
    slaves[2].ha.follow(master.address)
    await until(lambda: master.ha.in_sync_replicas == 4)
    end = master.put(b"last")
    await until(lambda: master.ha.acked_by(4) == end)
    await slaves[0].ha.stop()
    await until(lambda: master.ha.in_sync_replicas == 3)
    assert master.ha.acked_by(4) == -1


async def test_a_slave_that_connects_again_counts_once(replicas):
    """RocketMQ counts links: one slave with an old link that is not closed yet makes two copies there."""
    (master,) = await replicas(1)
    master.ha.serve()
    end = master.put(b"a message that three replicas must have")
    links = []
    for _ in range(2):
        _, writer = await asyncio.open_connection("127.0.0.1", master.ha.port)
        links.append(writer)
        writer.write(struct.pack(">qq", end, end))
        await until(lambda: len(master.ha.replicas()) == len(links))
    assert master.ha.acked_by(2) == end
    assert master.ha.acked_by(3) == -1
    links[0].close()
    await until(lambda: len(master.ha.replicas()) == 1)
    assert master.ha.acked_by(2) == end
    links[1].close()


async def test_the_first_report_acknowledges_nothing(replicas):
    """It says where the slave's own log ends, whatever is in that."""
    (master,) = await replicas(1)
    master.ha.serve()
    end = master.put(b"written by a master that lost what the slave has there")
    _, writer = await asyncio.open_connection("127.0.0.1", master.ha.port)
    writer.write(struct.pack(">q", end))
    await until(lambda: len(master.ha.replicas()) == 1)
    assert master.ha.acked_by(2) == -1
    assert master.ha.in_sync_replicas == 1
    writer.write(struct.pack(">q", end))
    await until(lambda: master.ha.acked_by(2) == end)
    writer.close()


async def test_a_lagging_slave_is_not_in_sync(replicas):
    (master,) = await replicas(1, HAConfig(ha_max_gap_not_in_sync=5_000))
    master.ha.serve()
    end = master.put(b"x")
    _, writer = await asyncio.open_connection("127.0.0.1", master.ha.port)
    writer.write(struct.pack(">qq", end, end))
    await until(lambda: master.ha.in_sync_replicas == 2)
    master.put(b"y" * 10_000)
    assert master.ha.in_sync_replicas == 1
    assert not master.ha.replicas()[0].in_sync
    assert master.ha.held_by_all() == master.store.max_offset
    writer.write(struct.pack(">q", master.store.max_offset))
    await until(lambda: master.ha.in_sync_replicas == 2)
    writer.close()


async def test_a_silent_unknown_peer_is_dropped_and_a_silent_slave_too(replicas):
    (master,) = await replicas(1, QUICK)
    master.ha.serve()
    end = master.put(b"x")
    reader, writer = await asyncio.open_connection("127.0.0.1", master.ha.port)
    slave_reader, slave_writer = await asyncio.open_connection("127.0.0.1", master.ha.port)
    slave_writer.write(struct.pack(">q", end))
    assert await asyncio.wait_for(reader.read(), 5) == b""
    received = await asyncio.wait_for(slave_reader.read(), 5)
    assert received
    assert received == struct.pack(">qi", end, 0) * (len(received) // 12), "heartbeats only"
    await until(lambda: not master.ha.replicas())
    writer.close()
    slave_writer.close()


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">q", -1),
        struct.pack(">q", 1 << 62),
        struct.pack(">qq", 1, 0),
        struct.pack(">qq", 0, 1 << 40),
        b"GET / HTTP/1.1\r\n\r\n",
        b"BMQP" + bytes(32),
    ],
)
async def test_unknown_peers_on_the_port_move_nothing(replicas, data):
    (master,) = await replicas(1)
    master.ha.serve()
    master.put(b"x")
    reader, writer = await asyncio.open_connection("127.0.0.1", master.ha.port)
    writer.write(data)
    with contextlib.suppress(ConnectionError):
        while await asyncio.wait_for(reader.read(1 << 16), 5):
            pass
    assert master.ha.acked_by(2) == -1
    assert master.ha.in_sync_replicas == 1
    writer.close()


@pytest.mark.parametrize(
    "frames",
    [
        struct.pack(">qi", -1, 0),
        struct.pack(">qi", 0, -5),
        struct.pack(">qi", 17, 4) + b"abcd",
        struct.pack(">qi", 0, 4) + b"abcd" + struct.pack(">qi", 0, 4) + b"abcd",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
    ],
)
async def test_what_a_false_master_sends_does_not_break_the_slave(replicas, frames):
    (slave,) = await replicas(1)
    received = asyncio.Event()

    async def serve(reader, writer):
        writer.write(frames)
        while await reader.read(100):
            pass
        received.set()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    slave.ha.follow(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
    await asyncio.wait_for(received.wait(), 5)
    assert slave.store.max_offset in (0, 4)
    server.close()


async def test_the_secret_keeps_unknown_peers_out_and_names_the_slave(replicas):
    config = HAConfig(ha_secret="sixteen characters or more")
    master, slave = await replicas(2, config, security=security_of(config, TlsConfig()))
    master.ha.serve()
    master.put(b"x")
    slave.ha.follow(master.address)
    end = master.put(b"y")
    await until(lambda: master.ha.acked_by(2) == end)
    assert master.ha.replicas()[0].broker_id == 1
    reader, writer = await asyncio.open_connection("127.0.0.1", master.ha.port)
    writer.write(struct.pack(">q", end))
    assert await asyncio.wait_for(reader.read(), 5) == b""
    assert master.ha.acked_by(3) == -1
    assert slave.log() == master.log()
    writer.close()


async def test_a_far_slave_is_read_ahead_for_and_gets_equal_bytes(replicas, monkeypatch):
    monkeypatch.setattr(master_link, "FAR_BEHIND_BYTES", 300_000)
    used = []
    ahead = master_link.ReadAhead
    monkeypatch.setattr(master_link, "ReadAhead", lambda *args: used.append(1) or ahead(*args))
    master, slave = await replicas(2, HAConfig(ha_send_whole_log=True))
    master.ha.serve()
    for seed in range(60):
        master.put(*(random.Random(seed).randbytes(5_000) for _ in range(8)))
    assert master.store.max_offset > 2_000_000
    slave.ha.follow(master.address)
    await until(lambda: slave.store.max_offset == master.store.max_offset, 20)
    assert used
    assert slave.log() == master.log()


async def test_flow_control_bounds_the_rate(replicas):
    config = HAConfig(ha_flow_control_enable=True, max_ha_transfer_byte_in_second=200_000)
    master, slave = await replicas(2, config)
    master.ha.serve()
    master.put(b"z" * 50_000)
    loop = asyncio.get_running_loop()
    began = loop.time()
    slave.ha.follow(master.address)
    await until(lambda: slave.store.max_offset == master.store.max_offset)
    assert loop.time() - began > 0.1
    assert slave.log() == master.log()


async def test_with_sync_flush_a_slave_acknowledges_what_its_disk_has(replicas):
    master, slave = await replicas(2, sync_flush=True)
    master.ha.serve()
    slave.ha.follow(master.address)
    end = master.put(b"x")
    await until(lambda: master.ha.acked_by(2) == end)
    assert slave.store.flushed_offset == end


async def test_a_full_disk_ends_the_link_and_following_continues_later(replicas, monkeypatch):
    master, slave = await replicas(2)
    master.ha.serve()
    slave.ha.follow(master.address)
    end = master.put(b"fits")
    await until(lambda: slave.store.max_offset == end)
    append = slave.store.append_raw
    full = True

    def append_raw(offset, data):
        if full:
            raise OSError(28, "No space left on device")
        append(offset, data)

    monkeypatch.setattr(slave.store, "append_raw", append_raw)
    end = master.put(b"does not")
    await asyncio.sleep(0.1)
    assert slave.store.max_offset < end
    assert master.ha.acked_by(2) < end
    full = False
    await until(lambda: slave.store.max_offset == end)
    assert slave.log() == master.log()


async def test_a_slave_refuses_slaves(replicas):
    master, slave, other = await replicas(3)
    master.ha.serve()
    master.put(b"x")
    slave.ha.follow(master.address)
    await until(lambda: slave.ha.following)
    other.ha.follow(slave.address)
    await asyncio.sleep(0.2)
    assert other.store.max_offset == 0
    other.ha.set_master_address(master.address)
    await until(lambda: other.store.max_offset == master.store.max_offset)


async def test_a_slave_that_pauses_continues_at_once_when_the_master_announces_itself(replicas, monkeypatch):
    monkeypatch.setattr(follower, "RECONNECT_S", (30.0, 30.0))
    master, slave = await replicas(2)
    slave.ha.follow("127.0.0.1:1")
    await asyncio.sleep(0.1)  # it cannot connect, and pauses
    master.ha.serve()
    slave.ha.set_master_address(master.address)
    slave.ha.hasten()
    await until(lambda: slave.ha.followed == master.address and bool(master.ha.replicas()))
    assert slave.ha.master().local_address == master.ha.replicas()[0].address


async def test_a_slave_says_once_that_it_follows_and_again_after_a_lost_link(replicas):
    """Also where nothing is sent meanwhile."""
    followed = []
    master, slave = await replicas(2)
    slave.ha.on_followed = lambda: followed.append(slave.ha.following)
    master.ha.serve()
    master.put(b"x")
    slave.ha.follow(master.address)
    await until(lambda: slave.bodies() == [b"x"])
    master.put(b"y")
    await until(lambda: slave.bodies() == [b"x", b"y"])
    assert followed == [True]
    slave.ha.link.close("says the test")
    await until(lambda: len(followed) == 2)
    assert followed == [True, True]
