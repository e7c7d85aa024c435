"""A master reads its log ahead for a slave that catches up: failures, and links that end meanwhile."""

import errno
import threading
import time

import pytest

from batonmq.ha import read_ahead
from batonmq.ha.config import HAConfig

from .conftest import until


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
