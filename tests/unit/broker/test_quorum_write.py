"""Quorum write in groups without controllers (RIP-34): how many copies a send waits for while replicas come
and go, with a real store and simulated replicas."""

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.unit.broker.test_appender import Rig

from batonmq.broker.messages.acks import ALL_IN_SYNC, PendingByCopies
from batonmq.broker.messages.appender import PutStatus

OK, LATE, FEW = PutStatus.PUT_OK, PutStatus.FLUSH_SLAVE_TIMEOUT, PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    rig = Rig(
        tmp_path,
        enable_slave_acting_master=True,
        in_sync_replicas=3,
        min_in_sync_replicas=2,
        enable_auto_in_sync_replicas=True,
        slave_timeout=80,
    )
    yield rig
    await rig.appender.stop()
    rig.store.close()


async def test_sends_wait_for_as_many_as_are_in_sync_and_for_more_when_they_are_back(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "batonmq.broker.messages.appender")
    end = await rig.put("three")
    rig.replicas.acks = [end, 0]
    rig.appender.progress()
    assert rig.log == []
    rig.replicas.acks = [end, end]
    rig.appender.progress()
    rig.replicas.in_sync_replicas = 2
    end = await rig.put("two")
    rig.replicas.acks = [end]
    rig.appender.progress()
    rig.replicas.in_sync_replicas = 1
    await rig.put("none")
    rig.replicas.in_sync_replicas = 3
    end = await rig.put("three again")
    rig.replicas.acks = [end]
    rig.appender.progress()
    assert rig.log == [("three", OK), ("two", OK), ("none", FEW)]
    rig.replicas.acks = [end, end]
    rig.appender.progress()
    assert rig.log[3:] == [("three again", OK)]
    assert [record.getMessage() for record in caplog.records] == [
        "sends wait for 2 copies, not 3: no more replicas are in sync",
        "sends that wait for replicas are refused: in sync are 1, this master included",
        "enough replicas are in sync again",
    ]


async def test_a_send_under_way_waits_for_no_more_copies_than_a_new_one(rig: Rig) -> None:
    first = await rig.put("three")
    rig.replicas.acks = [first, 0]
    rig.appender.progress()
    assert rig.log == []
    rig.replicas.in_sync_replicas = 2  # the slave that has nothing is lost
    rig.replicas.acks = [first]
    rig.appender.progress()
    assert rig.log == [("three", OK)]


async def test_a_send_under_way_keeps_its_number_of_copies_while_more_are_needed_of_new_ones(
    rig: Rig,
) -> None:
    rig.replicas.in_sync_replicas = 2
    await rig.put("two")
    rig.replicas.in_sync_replicas = 3
    end = await rig.put("three")
    assert rig.appender.backlog == 2
    rig.replicas.acks = [end, 0]
    rig.appender.progress()
    assert rig.log == [("two", OK)]
    await asyncio.sleep(0.12)
    assert rig.log[1:] == [("three", LATE)]
    assert rig.appender.backlog == 0


async def test_with_too_few_replicas_in_sync_a_send_under_way_is_not_acknowledged(rig: Rig) -> None:
    await rig.put("three")
    rig.replicas.in_sync_replicas = 1  # minInSyncReplicas=2
    rig.replicas.acks = []
    rig.appender.progress()
    assert rig.log == []
    await asyncio.sleep(0.12)
    assert rig.log == [("three", LATE)]


@pytest.mark.parametrize("auto", [True, False])
async def test_only_enable_auto_in_sync_replicas_lets_sends_under_way_wait_for_fewer_copies(
    tmp_path: Path, auto: bool
) -> None:
    rig = Rig(
        tmp_path,
        enable_slave_acting_master=True,
        in_sync_replicas=2,
        enable_auto_in_sync_replicas=auto,
        slave_timeout=80,
    )
    rig.replicas.in_sync_replicas = 2
    await rig.put("two")
    rig.replicas.in_sync_replicas = 1
    rig.replicas.acks = []
    rig.appender.progress()
    await asyncio.sleep(0.12)
    assert rig.log == [("two", OK if auto else LATE)]
    await rig.appender.stop()
    rig.store.close()


async def test_no_more_replicas_count_than_the_name_servers_know_as_alive(rig: Rig) -> None:
    rig.appender.alive_replicas = 2
    end = await rig.put("two")
    rig.replicas.acks = [end]
    rig.appender.progress()
    assert rig.log == [("two", OK)]
    rig.appender.alive_replicas = 1
    await rig.put("none")
    assert rig.log[1:] == [("none", FEW)]
    rig.appender.alive_replicas = 0  # not even this master: its registration is under way
    await rig.put("none either")
    assert rig.log[2:] == [("none either", FEW)]


async def test_without_acting_slaves_the_number_of_the_alive_does_not_matter(tmp_path: Path) -> None:
    rig = Rig(tmp_path, in_sync_replicas=2)
    rig.appender.alive_replicas = 1
    end = await rig.put("a")
    rig.replicas.acks = [end]
    rig.appender.progress()
    assert rig.log == [("a", OK)]
    await rig.appender.stop()
    rig.store.close()


def test_groups_of_sends_that_are_done_are_dropped() -> None:
    pending: PendingByCopies[str] = PendingByCopies()
    pending.waiting_for(2).add(100, 10, "a")
    pending.waiting_for(2).add(200, 20, "b")
    pending.waiting_for(ALL_IN_SYNC).add(300, 30, "c")
    assert [copies for copies, _ in pending.groups] == [2, ALL_IN_SYNC]
    assert len(pending) == 3 and pending.next_deadline_ms() == 10
    assert pending.groups[0][1].complete(1000) == ["a", "b"]
    assert pending.next_deadline_ms() == 30
    pending.waiting_for(2).add(400, 40, "d")
    assert [copies for copies, _ in pending.groups] == [ALL_IN_SYNC, 2]
    assert pending.abandon() == ["c", "d"] and len(pending) == 0
    assert pending.next_deadline_ms() is None
