"""New terms: which part of a log a replica keeps, what it cuts, which epochs it refuses."""

import asyncio
import random

import pytest

from batonmq.ha.autoswitch.service import StaleEpoch
from batonmq.ha.role import HARole
from batonmq.store.errors import StoreError

from .conftest import same_set, until


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
