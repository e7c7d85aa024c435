"""HAService with real stores over loopback sockets."""

import asyncio
import contextlib
import errno
import random
import socket
import sys
import threading
import time

import pytest

from batonmq.ha import flow, read_ahead
from batonmq.ha.autoswitch import master_link
from batonmq.ha.autoswitch.core import MasterSession
from batonmq.ha.autoswitch.master_link import MasterLink
from batonmq.ha.autoswitch.service import StaleEpoch
from batonmq.ha.config import HAConfig
from batonmq.ha.role import HARole
from batonmq.protocol.ha_frames import Ack, HAFrameError, SlaveHandshake
from batonmq.protocol.message.record import StoredMessage, encode_blank
from batonmq.store.errors import StoreError

from .conftest import FILE_SIZE, same_set, until


async def test_a_slave_copies_confirms_and_dispatches(replicas):
    master, slave = await replicas(2)
    await master.lead(1)
    master.put(b"one", b"two")
    await slave.follow(master, 1)
    await until(lambda: master.ha.tracker.agreed.members == {1, 2})
    end = master.put(b"three")
    assert master.store.confirm_offset < end, "not confirmed before the slave has it"
    await until(lambda: master.store.confirm_offset == end)
    await until(lambda: slave.store.confirm_offset == end)
    assert slave.log() == master.log()
    assert slave.bodies() == [b"one", b"two", b"three"] == master.bodies()
    assert slave.ha.epochs.entries == ((1, 0),)
    (status,) = master.ha.replicas()
    assert (status.broker_id, status.ack_offset, status.in_sync) == (2, end, True)
    assert slave.ha.master().address == master.address


async def test_with_sync_flush_nothing_is_confirmed_before_the_masters_own_disk_has_it(replicas):
    """Alone in the SyncStateSet, a master would else show consumers what a power cut takes back."""
    (master,) = await replicas(1, sync_flush=True)
    await master.lead(1)
    end = master.put(b"in memory")
    assert master.store.confirm_offset < end
    assert master.bodies() == []
    master.store.flush()
    master.ha.wake()
    master.ha.on_progress()
    assert master.store.confirm_offset == end
    assert master.bodies() == [b"in memory"]


async def test_with_sync_flush_a_new_master_flushes_what_it_got_as_slave(replicas):
    master, slave = await replicas(2, sync_flush=True)
    await master.lead(1)
    end = master.put(b"one")
    slave.store.append_raw(0, memoryview(master.log()))
    assert slave.store.flushed_offset < end
    await slave.lead(2)
    assert slave.store.flushed_offset == slave.store.confirm_offset == end


async def test_many_files_and_a_slow_start(replicas):
    master, slave = await replicas(2)
    await master.lead(1)
    for number in range(300):
        master.put(bytes([number % 256]) * 1000)
    assert master.store.max_offset > 4 * 64 * 1024
    await slave.follow(master, 1)
    await until(lambda: slave.store.max_offset == master.store.max_offset)
    assert slave.log() == master.log()
    await until(lambda: len(slave.bodies()) == 300)


async def test_a_slave_that_catches_up_leaves_turns_to_others(replicas, monkeypatch):
    """The socket takes all of the log at once; a producer would wait as long as that takes."""
    turn, frame = 16 * 1024, 4096
    config = HAConfig(ha_send_buffer_size=turn, ha_transfer_batch_size=frame)
    master, slave = await replicas(2, config)
    await master.lead(1)
    for number in range(300):
        master.put(bytes([number % 256]) * 1000)
    sent, pieces = [], []
    pump, read, reading = MasterLink.pump, master.store.read, master.store.reading

    def watched(link):
        before = link.session.next_offset
        pump(link)
        sent.append(link.session.next_offset - before)

    def never_far_behind(offset, max_bytes):
        assert master.store.max_offset - offset <= turn
        return read(offset, max_bytes)

    def watched_reading(offset, size):
        monkeypatch.setattr(master.store, "read", read)
        job = reading(offset, size)
        monkeypatch.setattr(master.store, "read", never_far_behind)

        def work():
            assert threading.current_thread() is not threading.main_thread()
            pieces.append((offset, job()))
            return pieces[-1][1]

        return work

    monkeypatch.setattr(MasterLink, "pump", watched)
    monkeypatch.setattr(master.store, "read", never_far_behind)
    monkeypatch.setattr(master.store, "reading", watched_reading)
    await slave.follow(master, 1)
    await until(lambda: slave.store.max_offset == master.store.max_offset)
    assert max(sent) <= turn + frame
    assert sum(sent) == master.store.max_offset
    assert len(pieces) > 3
    monkeypatch.undo()
    assert slave.log() == master.log()


async def test_a_slave_that_catches_up_is_sent_no_more_than_it_acknowledges(replicas, monkeypatch):
    """A socket takes megabytes: a slave that always finds more in it leaves its processor to nobody."""
    turn, frame = 16 * 1024, 4096
    monkeypatch.setattr(flow, "LEAST_WINDOW", 2 * turn)
    master, slave = await replicas(2, HAConfig(ha_send_buffer_size=turn, ha_transfer_batch_size=frame))
    await master.lead(1)
    for number in range(300):
        master.put(bytes([number % 256]) * 1000)
    ahead, frame_of = [], MasterSession.frame

    def watched(session, batch, size, bounds, now_ms):
        if bounds.max_offset - session.next_offset > turn:
            (link,) = master.ha.listener.links
            ahead.append((session.next_offset - session.ack_offset, link._window.size))
        return frame_of(session, batch, size, bounds, now_ms)

    monkeypatch.setattr(MasterSession, "frame", watched)
    await slave.follow(master, 1)
    await until(lambda: slave.store.max_offset == master.store.max_offset)
    assert len(ahead) > 10
    assert all(under_way < window for under_way, window in ahead)
    assert slave.log() == master.log()


async def test_a_member_gets_no_record_in_two_frames(replicas, monkeypatch):
    """A RocketMQ slave that is elected with half a record at its end hangs: it waits for the other half."""
    master, slave = await replicas(2, HAConfig(ha_transfer_batch_size=500, ha_send_buffer_size=2000))
    await master.lead(1)
    await slave.follow(master, 1)
    await until(lambda: master.ha.tracker.agreed.members == {1, 2})
    frames, frame = [], MasterSession.frame

    def watched(session, batch, size, bounds, now_ms):
        frames.append((batch.offset, batch.offset + size))
        return frame(session, batch, size, bounds, now_ms)

    monkeypatch.setattr(MasterSession, "frame", watched)
    ends = {0}
    for size in (10, 600, 300, 30_000, 1, 2, 3, 40_000, 700):  # the second long one begins a new file
        master.store.put([StoredMessage(topic="T", queue_id=0, body=bytes(size))])
        ends.add(master.store.max_offset)
    master.ha.wake()
    await until(lambda: slave.store.max_offset == master.store.max_offset)
    log = master.log()
    assert slave.log() == log
    filler = log.index(encode_blank(FILE_SIZE - max(end for end in ends if end < FILE_SIZE))[4:])
    for _, end in frames:
        assert end in ends or filler < end <= FILE_SIZE
    assert max(end - begin for begin, end in frames) > 40_000
    assert min(end - begin for begin, end in frames) < 500


async def test_a_slave_that_becomes_a_member_amid_a_record_gets_its_rest_in_one_frame(replicas, monkeypatch):
    master, slave = await replicas(2, HAConfig(ha_transfer_batch_size=500, ha_send_buffer_size=2000))
    await master.lead(1)
    master.agreeable = False
    ends = {0}
    for _ in range(12):
        master.store.put([StoredMessage(topic="T", queue_id=0, body=bytes(9_000))])
        ends.add(master.store.max_offset)
    frames, frame, joined = [], MasterSession.frame, False

    def watched(session, batch, size, bounds, now_ms):
        nonlocal joined
        end = batch.offset + size
        frames.append((batch.offset, end, joined))
        if end > 20_000 and end not in ends:
            master.ha.tracker.agreed = same_set(1, 2, epoch=2)
            joined = True
        return frame(session, batch, size, bounds, now_ms)

    monkeypatch.setattr(MasterSession, "frame", watched)
    await slave.follow(master, 1)
    await until(lambda: slave.store.max_offset == master.store.max_offset)
    assert slave.log() == master.log()
    after = [(begin, end) for begin, end, joined in frames if joined]
    pieces = [end for _, end in after if end not in ends and end < 60_000]
    assert len(pieces) <= 4, "those of the loop turn in which it joined"
    rest = [end - begin for begin, end in after if begin == pieces[-1]]
    assert rest and rest[0] > 500
    assert all(end in ends for begin, end in after if begin >= pieces[-1] and end < 60_000)


async def test_a_record_that_no_frame_holds_comes_in_several(replicas, monkeypatch):
    """RocketMQ's slaves read frames of 4 MiB. Here 3 kB stand for that."""
    monkeypatch.setattr(master_link, "MAX_TRANSFER_BATCH", 3_000)
    master, slave = await replicas(2, HAConfig(ha_transfer_batch_size=500))
    await master.lead(1)
    await slave.follow(master, 1)
    await until(lambda: master.ha.tracker.agreed.members == {1, 2})
    sizes, frame = [], MasterSession.frame
    most_frames = None

    def watched(session, batch, size, bounds, now_ms):
        if len(sizes) == most_frames:
            raise HAFrameError("the line is cut")
        sizes.append(size)
        return frame(session, batch, size, bounds, now_ms)

    monkeypatch.setattr(MasterSession, "frame", watched)
    for size in (10, 10_000, 10):
        master.store.put([StoredMessage(topic="T", queue_id=0, body=bytes(size))])
    master.ha.wake()
    await until(lambda: slave.store.max_offset == master.store.max_offset)
    assert slave.log() == master.log()
    assert max(sizes) <= 3_000 and len(sizes) >= 6

    end = slave.store.max_offset
    most_frames = len(sizes) + 2
    master.store.put([StoredMessage(topic="T", queue_id=0, body=bytes(10_000))])
    master.ha.wake()
    await until(lambda: slave.store.max_offset > end)
    await asyncio.sleep(0.05)
    assert slave.store.max_offset < master.store.max_offset
    await slave.lead(2)
    assert slave.store.max_offset == end, "half a record is cut by a new master"


async def test_a_log_that_cannot_be_read_ahead_is_still_sent(replicas, monkeypatch, caplog):
    """Its file may have been deleted by hand, or there is no descriptor left: the map is still there."""
    master, slave = await replicas(2, HAConfig(ha_send_buffer_size=16 * 1024, ha_transfer_batch_size=4096))
    await master.lead(1)
    for number in range(300):
        master.put(bytes([number % 256]) * 1000)

    def broken():
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(master.store, "reading", lambda offset, size: broken)
    await slave.follow(master, 1)
    await until(lambda: slave.store.max_offset == master.store.max_offset)
    assert slave.log() == master.log()
    assert "cannot be read: [Errno 24] Too many open files" in caplog.text


@pytest.mark.parametrize("code", [errno.EIO, errno.EUCLEAN])
async def test_a_disk_that_fails_under_the_log_ends_the_link_and_not_the_master(
    replicas, monkeypatch, caplog, code
):
    """What the disk does not give, the map does not have: touching it is a SIGBUS. Later it may be there.
    What comes before is sent, and the slave does not dial as fast as it can."""
    monkeypatch.setattr(read_ahead, "PIECE_BYTES", 16 * 1024)
    master, slave = await replicas(2, HAConfig(ha_send_buffer_size=16 * 1024, ha_transfer_batch_size=4096))
    await master.lead(1)
    for number in range(300):
        master.put(bytes([number % 256]) * 1000)
    bad, tries = 128 * 1024, []
    reading = master.store.reading

    def partly(offset, size):
        def broken():
            tries.append(time.monotonic())
            raise OSError(code, "the disk says so")

        return broken if offset + size > bad else reading(offset, size)

    def by_map(offset, size):
        raise AssertionError("SIGBUS")

    with monkeypatch.context() as patch:
        patch.setattr(master.store, "reading", partly)
        patch.setattr(master.store, "read", by_map)
        await slave.follow(master, 1)
        await until(lambda: len(tries) > 5)
        assert "cannot be read: " in caplog.text and "the disk says so" in caplog.text
        assert tries[5] - tries[1] > 0.02 + 0.04 + 0.08
        assert bad - 16 * 1024 <= slave.store.max_offset <= bad
    await until(lambda: slave.store.max_offset == master.store.max_offset)
    assert slave.log() == master.log()


async def test_a_link_that_ends_while_the_log_is_read_sends_no_more(replicas, monkeypatch):
    master, slave = await replicas(2, HAConfig(ha_send_buffer_size=16 * 1024, ha_transfer_batch_size=4096))
    await master.lead(1)
    for number in range(300):
        master.put(bytes([number % 256]) * 1000)
    gate, begun = threading.Event(), threading.Event()
    reading = master.store.reading

    def gated(offset, size):
        job = reading(offset, size)

        def work():
            begun.set()
            gate.wait(10)
            return job()

        return work

    monkeypatch.setattr(master.store, "reading", gated)
    await slave.follow(master, 1)
    await until(begun.is_set)
    await slave.ha.become_slave(None, 1, 1)
    await until(lambda: not master.ha.listener.links)
    gate.set()
    monkeypatch.undo()
    await slave.follow(master, 1)
    await until(lambda: slave.store.max_offset == master.store.max_offset)
    assert slave.log() == master.log()


async def test_acked_by_and_on_progress(replicas):
    master, slave = await replicas(2)
    await master.lead(1)
    seen = []
    dispatch = master.ha.on_progress
    master.ha.on_progress = lambda: (seen.append(master.ha.acked_by(2)), dispatch())
    await slave.follow(master, 1)
    end = master.put(b"x")
    assert master.ha.acked_by(1) == end
    await until(lambda: master.ha.acked_by(2) == end)
    assert end in seen
    assert master.ha.acked_by(3) == -1
    await until(lambda: master.ha.in_sync_replicas == 2)


async def test_kill_and_switch_back_and_forth(replicas):
    """The killed master comes back with a tail nobody else has, twice."""
    first, second = await replicas(2)
    await first.lead(1)
    await second.follow(first, 1)
    first.put(b"a1", b"a2")
    await until(lambda: second.store.max_offset == first.store.max_offset)
    for epoch, (old, new) in enumerate([(first, second), (second, first), (first, second)], start=2):
        await new.ha.become_slave(None, old.broker_id, epoch - 1)  # the link is gone
        old.put(b"alone %d" % epoch)
        await old.restart(crash=True)
        await new.lead(epoch)
        new.put(b"new %d" % epoch)
        await old.follow(new, epoch)
        await until(lambda old=old, new=new: old.store.max_offset == new.store.max_offset)
        assert old.log() == new.log()
        assert old.ha.epochs.entries == new.ha.epochs.entries
    assert first.bodies() == [b"a1", b"a2", b"new 2", b"new 3", b"new 4"]
    await until(lambda: second.bodies() == first.bodies())


async def test_a_torn_record_is_cut_before_a_new_term(replicas):
    master, slave = await replicas(2)
    await master.lead(1)
    master.put(b"whole")
    whole = master.store.max_offset
    master.put(b"never complete at the slave")
    slave.store.append_raw(0, memoryview(master.log())[: whole + 30])
    await slave.lead(2)
    assert slave.store.max_offset == whole
    assert slave.ha.epochs.entries == ((2, 0),), (
        "a log of unknown origin belongs to its first term as a whole"
    )
    slave.put(b"next")
    assert slave.bodies() == [b"whole", b"next"]


async def test_a_log_that_shares_nothing_starts_over(replicas):
    master, slave, late = await replicas(3)
    await slave.lead(1)
    slave.put(*[b"of another history" * 100] * 50)
    await master.lead(2)
    master.put(*[b"m" * 1000] * 200)
    for path in master.store._log.files.drop_first(2):
        path.unlink()  # the oldest files expired
    assert master.store.min_offset == 128 * 1024
    for node in (slave, late):
        await node.follow(master, 2)
        await until(lambda node=node: node.store.max_offset == master.store.max_offset)
        assert node.store.min_offset == 128 * 1024
        assert node.log() == master.log()
        assert node.ha.epochs.entries == ((2, 0),)
    await until(lambda: master.ha.tracker.agreed.members == {1, 2, 3})
    master.put(b"last")
    await until(lambda: slave.store.confirm_offset == master.store.max_offset)
    bounds = slave.store.queue_bounds("T", 0)
    assert bounds == late.store.queue_bounds("T", 0)
    await slave.restart()
    assert slave.log() == master.log()
    assert slave.store.queue_bounds("T", 0) == bounds


@pytest.mark.parametrize("from_last_file", [False, True])
async def test_who_begins_far_into_the_log_is_sent_all_of_it(replicas, monkeypatch, from_last_file):
    """What it was not sent is not on its way: a window that counted it would be full for ever."""
    monkeypatch.setattr(flow, "LEAST_WINDOW", 16 * 1024)
    (master,) = await replicas(1, HAConfig(ha_send_buffer_size=16 * 1024))
    (slave,) = await replicas(1, HAConfig(sync_from_last_file=from_last_file))
    await master.lead(1)
    while master.store.max_offset % FILE_SIZE < 50_000 or master.store.max_offset < 3 * FILE_SIZE:
        master.put(b"m" * 1000)
    if not from_last_file:
        for path in master.store._log.files.drop_first(2):
            path.unlink()  # the oldest files expired
    await slave.follow(master, 1)
    await until(lambda: slave.store.max_offset == master.store.max_offset)
    assert slave.store.min_offset == (3 if from_last_file else 2) * FILE_SIZE
    assert master.log().endswith(slave.log())


async def test_a_log_that_is_damaged_inside_is_not_cut_for_a_new_term(replicas):
    """Replicas with other file sizes: records cross file ends here and cannot be read; they are not lost."""
    master, slave = await replicas(2)
    await master.lead(1)
    master.put(*[bytes(1000)] * 200)
    data = bytearray(master.log())
    data[40_000:41_500] = bytes(1500)
    slave.store.append_raw(0, memoryview(data))
    with pytest.raises(StoreError, match="mappedFileSizeCommitLog"):
        await slave.lead(2)
    assert slave.ha.role is HARole.NONE
    assert slave.store.max_offset == len(data)
    assert slave.ha.last_epoch == -1


async def test_role_changes_refuse_old_epochs_and_repeat_harmlessly(replicas):
    (master,) = await replicas(1)
    await master.lead(5)
    master.put(b"x")
    await master.lead(5)
    assert master.ha.epochs.entries == ((5, 0),)
    with pytest.raises(StaleEpoch):
        await master.lead(4)
    with pytest.raises(StaleEpoch):
        await master.ha.become_slave(None, 2, 4)
    assert master.ha.role is HARole.MASTER
    await master.lead(6)
    assert [entry.epoch for entry in master.ha.epochs.entries] == [5, 6]


async def test_a_new_term_of_the_same_master_reaches_slaves_9689(replicas):
    master, slave = await replicas(2)
    await master.lead(1)
    await slave.follow(master, 1)
    master.put(b"one")
    await until(lambda: slave.store.max_offset == master.store.max_offset)
    await master.lead(4, 1, 2)
    end = master.put(b"two")
    await until(lambda: slave.store.max_offset == end)
    assert slave.ha.epochs.entries == master.ha.epochs.entries
    assert slave.ha.last_epoch == 4
    await until(lambda: master.store.confirm_offset == end, 2)  # it would be dropped for its lag after 3 s


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
    master, slave = await replicas(2)
    await master.lead(1)
    await slave.follow(master, 1)
    await until(lambda: slave.ha.following)
    twin_reader, twin = await asyncio.open_connection("127.0.0.1", master.ha.port)
    twin.write(SlaveHandshake(2).encode() + Ack(0).encode())
    await until(lambda: len(master.ha.replicas()) == 1)
    await until(lambda: slave.ha.following and len(master.ha.listener.links) == 1, 10)
    assert await twin_reader.read() is not None
    twin.close()
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


async def test_a_lost_slave_is_asked_out_at_once_and_comes_back(replicas):
    master, slave = await replicas(2)
    await master.lead(1)
    await slave.follow(master, 1)
    await until(lambda: master.ha.tracker.agreed.members == {1, 2})
    await slave.ha.become_slave(None, 1, 1)
    await until(lambda: master.ha.tracker.agreed.members == {1}, 1)
    end = master.put(b"alone")
    assert master.store.confirm_offset == end
    await slave.follow(master, 1)
    await until(lambda: master.ha.tracker.agreed.members == {1, 2})


async def test_without_the_controllers_word_a_lost_slave_holds_the_confirm_offset_7017(replicas):
    """Two masters under isolation (#7017): the old one cannot shrink the set and confirms nothing more."""
    master, slave = await replicas(2)
    await master.lead(1)
    await slave.follow(master, 1)
    await until(lambda: master.ha.tracker.agreed.members == {1, 2})
    master.agreeable = False
    confirmed = master.put(b"both")
    await until(lambda: master.store.confirm_offset == confirmed)
    await slave.lead(2)
    end = master.put(b"alone")
    await asyncio.sleep(0.3)
    assert master.store.confirm_offset == confirmed < end
    assert master.bodies() == [b"both"]
    await master.follow(slave, 2)
    await until(lambda: master.log() == slave.log())
    assert master.bodies() == [b"both"]


async def test_a_learner_copies_and_never_joins(replicas):
    master, learner = await replicas(2, HAConfig(async_learner=True))
    await master.lead(1)
    await learner.follow(master, 1)
    end = master.put(b"x")
    await until(lambda: learner.store.max_offset == end)
    await asyncio.sleep(0.3)
    assert master.ha.tracker.agreed.members == {1}
    assert master.ha.replicas()[0].async_learner


async def test_sync_flush_acknowledges_what_is_on_disk(replicas):
    master, slave = await replicas(2, sync_flush=True)
    await master.lead(1)
    await slave.follow(master, 1)
    await until(lambda: master.ha.tracker.agreed.members == {1, 2})
    gate, flush = asyncio.Event(), slave.store.flush
    loop = asyncio.get_running_loop()

    def held() -> int:
        asyncio.run_coroutine_threadsafe(gate.wait(), loop).result(5)
        return flush()

    slave.store.flush = held
    before = slave.store.flushed_offset
    end = master.put(b"x")
    await until(lambda: slave.store.max_offset == end)
    await asyncio.sleep(0.05)
    assert master.ha.acked_by(2) == before
    gate.set()
    await until(lambda: master.ha.acked_by(2) == end)
    assert slave.store.flushed_offset == end
    slave.store.flush = flush


async def test_a_slow_slave_costs_bounded_memory(replicas):
    (master,) = await replicas(1, HAConfig(ha_send_buffer_size=128 * 1024, ha_transfer_batch_size=32 * 1024))
    await master.lead(1)
    for _ in range(100):
        master.put(bytes(50_000))
    reader, writer = await asyncio.open_connection("127.0.0.1", master.ha.port, limit=1024)
    writer.write(SlaveHandshake(2).encode() + Ack(0).encode())
    await until(lambda: bool(master.ha.replicas()))
    await asyncio.sleep(0.3)
    (link,) = master.ha.listener.links
    assert link._transport.get_write_buffer_size() <= 128 * 1024 + 33 * 1024
    assert link.session.next_offset < master.store.max_offset
    assert reader is not None
    writer.close()


async def test_a_disk_that_fails_at_the_slave_drops_the_link_and_heals(replicas, caplog):
    master, slave = await replicas(2)
    await master.lead(1)
    await slave.follow(master, 1)
    await until(lambda: slave.ha.following)
    append = slave.store.append_raw

    def full(offset, data):
        raise OSError(28, "No space left on device")

    slave.store.append_raw = full
    end = master.put(b"x")
    await until(lambda: "No space left" in caplog.text)
    slave.store.append_raw = append
    await until(lambda: slave.store.max_offset == end)


async def test_random_faults_end_in_equal_logs(replicas):
    """Random masters, cut links and crashes; whoever leads next has all that was confirmed."""
    chance = random.Random(7)
    nodes = await replicas(3)
    leader, epoch, number = nodes[0], 1, 0
    await leader.lead(epoch)
    for node in nodes[1:]:
        await node.follow(leader, epoch)
    confirmed: list[bytes] = []
    for _ in range(25):
        for _ in range(chance.randint(0, 6)):
            leader.put(b"%d" % number + bytes(chance.randint(0, 3000)))
            number += 1
            if chance.random() < 0.3:
                await asyncio.sleep(0.005 * chance.random())
        action = chance.random()
        if action < 0.3:
            for link in list(leader.ha.listener.links):
                link.close("cut by the test")
        elif action < 0.5:
            node = chance.choice([node for node in nodes if node is not leader])
            await node.restart(crash=chance.random() < 0.5)
            await node.follow(leader, epoch)
        else:
            confirmed = leader.bodies()
            members = leader.ha.tracker.counted
            leader_candidates = [node for node in nodes if node.broker_id in members]
            agreed = leader.ha.tracker.agreed
            epoch += 1
            leader = chance.choice(leader_candidates)
            await leader.ha.become_master(epoch, same_set(leader.broker_id, epoch=agreed.epoch + 1))
            assert leader.bodies()[: len(confirmed)] == confirmed
            for node in nodes:
                if node is not leader:
                    await node.follow(leader, epoch)
    await until(lambda: leader.ha.tracker.agreed.members == {1, 2, 3}, 20)
    await until(lambda: all(node.store.max_offset == leader.store.max_offset for node in nodes))
    assert len({node.log() for node in nodes}) == 1
    assert len({node.ha.epochs.entries for node in nodes}) == 1
    await until(lambda: all(node.bodies() == leader.bodies() for node in nodes))


async def test_a_slave_reports_a_master_that_sends_nothing(replicas):
    master, slave = await replicas(2)
    await master.lead(4)
    await slave.follow(master, 4)
    await until(lambda: slave.ha.following and slave.ha.link.session.silence.beats)
    reports: list[int | None] = []
    slave.ha.on_master_silent = lambda: reports.append(slave.ha.silent_master)
    slave.ha.suspect_master_ms = (500, 500)
    master.ha._tick_timer.cancel()  # its heartbeats stop; the link stays open
    await until(lambda: len(reports) == 2)
    assert reports == [4, 4]
    master.ha._tick()
    await until(lambda: slave.ha.silent_master is None)
    reported = len(reports)
    await slave.ha.become_slave(None, 1, 5)
    assert slave.ha.silent_master is None
    assert len(reports) == reported


async def test_a_slave_that_sends_nothing_leaves_the_set_until_it_speaks(replicas):
    master, slave = await replicas(2, HAConfig(ha_max_time_slave_not_catch_up=800))
    await master.lead(1)
    await slave.follow(master, 1)
    await until(lambda: master.ha.tracker.agreed.members == {1, 2})
    (link,) = master.ha.listener.links
    await until(lambda: link.session.silence.beats)
    slave.ha._tick_timer.cancel()
    await until(lambda: master.ha.tracker.agreed.members == {1}, 1.5)
    assert slave.ha.following, "the link is open"
    slave.ha._tick()
    await until(lambda: master.ha.tracker.agreed.members == {1, 2})


@pytest.mark.parametrize(
    ("timeout_ms", "limits"), [(3_000, (1_000, 2_500)), (10_000, (3_333, 8_333)), (10, (600, 600))]
)
async def test_the_controllers_timeout_scales_when_a_master_is_suspected(replicas, timeout_ms, limits):
    (slave,) = await replicas(1)
    slave.ha.suspect_after(timeout_ms)
    assert slave.ha.suspect_master_ms == limits
