"""A slave copies its master's log; what counts as acknowledged and confirmed."""

import asyncio

from .conftest import until


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
