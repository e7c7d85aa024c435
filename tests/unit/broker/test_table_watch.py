"""Slaves are notified of changes at once, and handlers wait until all slaves have copied them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from batonmq.broker.tables import watch as table_watch
from batonmq.broker.tables.watch import TableWatch


async def settled(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(2):
        while not condition():
            await asyncio.sleep(0)


async def test_no_wait_without_slaves() -> None:
    watch: TableWatch[str] = TableWatch()
    watch.changed()
    assert await watch.wait_until_copied()


async def test_a_new_slave_is_answered_at_once_and_then_with_each_change() -> None:
    watch: TableWatch[str] = TableWatch()
    watch.changed()
    assert await watch.next_change("slave", -1) == 1
    asked = asyncio.ensure_future(watch.next_change("slave", 1))
    await asyncio.sleep(0.01)
    assert not asked.done()
    watch.changed()
    assert await asked == 2


async def test_the_wait_ends_when_the_last_slave_has_copied_the_change() -> None:
    watch: TableWatch[str] = TableWatch()
    asked = [asyncio.ensure_future(watch.next_change(slave, 0)) for slave in ("one", "two")]
    await settled(lambda: watch.followers == 2)
    watch.changed()
    copied = asyncio.ensure_future(watch.wait_until_copied())
    assert await asyncio.gather(*asked) == [1, 1]
    again = [asyncio.ensure_future(watch.next_change("one", 1))]
    await asyncio.sleep(0.01)
    assert not copied.done(), "the other one may not have it"
    again.append(asyncio.ensure_future(watch.next_change("two", 1)))
    assert await copied
    watch.changed()
    assert await asyncio.gather(*again) == [2, 2]


async def test_no_wait_for_a_disconnected_slave() -> None:
    watch: TableWatch[str] = TableWatch()
    asked = asyncio.ensure_future(watch.next_change("slave", 0))
    await settled(lambda: watch.followers == 1)
    watch.changed()
    copied = asyncio.ensure_future(watch.wait_until_copied())
    await asked
    watch.closed("slave")
    assert await copied


async def test_a_slow_slave_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_watch, "COPY_WAIT_S", 0.02)
    watch: TableWatch[str] = TableWatch()
    await watch.next_change("slow", -1)
    watch.changed()
    assert not await watch.wait_until_copied()
    assert watch.followers == 0
    assert await watch.wait_until_copied()


async def test_a_member_that_has_not_asked_yet_is_waited_for() -> None:
    """It is in the SyncStateSet as soon as it has the log, and may be elected."""
    watch: TableWatch[str] = TableWatch()
    watch.members = lambda: {2}
    watch.changed()
    copied = asyncio.ensure_future(watch.wait_until_copied())
    await asyncio.sleep(0.01)
    assert not copied.done()
    assert await watch.next_change("slave", -1, 2) == 1
    await asyncio.sleep(0.01)
    assert not copied.done(), "it sent a request, but has copied nothing yet"
    asked = asyncio.ensure_future(watch.next_change("slave", 1, 2))
    assert await copied
    watch.closed("slave")
    await asked


async def test_a_member_that_never_asks_is_waited_for_once_a_term(monkeypatch: pytest.MonkeyPatch) -> None:
    """RocketMQ's slaves do not."""
    monkeypatch.setattr(table_watch, "COPY_WAIT_S", 0.02)
    watch: TableWatch[str] = TableWatch()
    watch.members = lambda: {2}
    watch.changed()
    assert not await watch.wait_until_copied()
    assert await watch.wait_until_copied()
    watch.begin_term()
    assert not await watch.wait_until_copied()
    await watch.next_change("slave", 0, 2)
    watch.closed("slave")
    assert not await watch.wait_until_copied(), "it has sent requests before"


async def test_copies_from_an_earlier_master_epoch_do_not_count() -> None:
    watch: TableWatch[str] = TableWatch()
    watch.changed()
    asked = asyncio.ensure_future(watch.next_change("slave", 1, 2))
    await settled(lambda: watch.followers == 1)
    watch.begin_term()
    assert watch.followers == 0
    assert await asked == 1


async def test_a_request_is_answered_after_a_while_without_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_watch, "HOLD_S", 0.02)
    watch: TableWatch[str] = TableWatch()
    assert await watch.next_change("slave", 0) == 0


async def test_a_member_that_was_given_up_still_lacks_the_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be elected all the same."""
    monkeypatch.setattr(table_watch, "COPY_WAIT_S", 0.02)
    watch: TableWatch[str] = TableWatch()
    watch.members = lambda: {2}
    await watch.next_change("slave", -1, 2)
    watch.changed()
    goal = watch.changes
    assert not await watch.wait_until_copied()
    assert await watch.lacking(goal, 0.02) == {2}
    watch.closed("slave")
    assert await watch.lacking(goal, 0.02) == {2}, "it has not gone, only its connection"
    lacking = asyncio.ensure_future(watch.lacking(goal, 2))
    await asyncio.sleep(0.01)
    asked = asyncio.ensure_future(watch.next_change("again", goal, 2))
    assert await lacking == set()
    watch.changed()
    await asked


async def test_only_members_that_ask_can_lack_a_change() -> None:
    """RocketMQ's slaves do not ask, and a slave that is not in sync is not elected."""
    watch: TableWatch[str] = TableWatch()
    watch.members = lambda: {2}
    asked = asyncio.ensure_future(watch.next_change("behind", 0, 3))
    await settled(lambda: watch.followers == 1)
    watch.changed()
    await asked
    assert await watch.lacking(watch.changes, 0.02) == set()
    watch.members = lambda: {3}
    assert await watch.lacking(watch.changes, 0.02) == {3}
    watch.begin_term()
    assert await watch.lacking(watch.changes, 0.02) == set()
