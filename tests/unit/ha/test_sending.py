"""What a master sends: turns, windows and frames, records in one piece, bounded memory."""

import asyncio
import threading

import pytest

from batonmq.ha import flow
from batonmq.ha.autoswitch import master_link
from batonmq.ha.autoswitch.core import MasterSession
from batonmq.ha.autoswitch.master_link import MasterLink
from batonmq.ha.config import HAConfig
from batonmq.protocol.ha_frames import Ack, HAFrameError, SlaveHandshake
from batonmq.protocol.message.record import StoredMessage, encode_blank

from .conftest import FILE_SIZE, same_set, until


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
    most = 128 * 1024 + 33 * 1024
    assert link._transport.get_write_buffer_size() <= most
    sent = link.session.next_offset
    assert sent < master.store.max_offset
    async with asyncio.timeout(5):
        await reader.readexactly(sent)
    writer.write(Ack(sent).encode())
    await until(lambda: link.session.next_offset > sent)
    await asyncio.sleep(0.1)
    assert link._transport.get_write_buffer_size() <= most
    assert link.session.next_offset < master.store.max_offset
    writer.close()


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
