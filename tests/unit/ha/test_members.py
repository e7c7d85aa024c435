"""Who is in the SyncStateSet, and who is reported or removed for its silence."""

import asyncio

import pytest

from batonmq.ha.autoswitch.service import REPEAT_MS
from batonmq.ha.config import HAConfig

from .conftest import until


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
    master.ha._tick_timer.cancel()
    await until(lambda: slave.ha.silent_master == 4)
    await slave.ha.become_slave(None, 1, 5)
    assert slave.ha.silent_master is None
    reported = len(reports)
    await asyncio.sleep(3 * REPEAT_MS / 1000)
    assert len(reports) == reported, "a master without a link is not reported"


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
