"""Slaves hear of changes at once, and handlers wait until all of them know."""

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


async def test_nobody_is_waited_for_where_nobody_follows() -> None:
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


async def test_a_change_is_known_when_the_last_slave_has_copied_it() -> None:
    watch: TableWatch[str] = TableWatch()
    asked = [asyncio.ensure_future(watch.next_change(slave, 0)) for slave in ("one", "two")]
    await settled(lambda: watch.followers == 2)
    watch.changed()
    known = asyncio.ensure_future(watch.wait_until_copied())
    assert await asyncio.gather(*asked) == [1, 1]
    again = [asyncio.ensure_future(watch.next_change("one", 1))]
    await asyncio.sleep(0.01)
    assert not known.done(), "the other one may not have it"
    again.append(asyncio.ensure_future(watch.next_change("two", 1)))
    assert await known
    watch.changed()
    assert await asyncio.gather(*again) == [2, 2]


async def test_a_slave_that_is_gone_is_not_waited_for() -> None:
    watch: TableWatch[str] = TableWatch()
    asked = asyncio.ensure_future(watch.next_change("slave", 0))
    await settled(lambda: watch.followers == 1)
    watch.changed()
    known = asyncio.ensure_future(watch.wait_until_copied())
    await asked
    watch.closed("slave")
    assert await known


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
    known = asyncio.ensure_future(watch.wait_until_copied())
    await asyncio.sleep(0.01)
    assert not known.done()
    assert await watch.next_change("slave", -1, 2) == 1
    await asyncio.sleep(0.01)
    assert not known.done(), "it asked, and has nothing yet"
    asked = asyncio.ensure_future(watch.next_change("slave", 1, 2))
    assert await known
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
    assert not await watch.wait_until_copied(), "one that has asked does ask"


async def test_what_was_copied_in_an_earlier_term_counts_no_more() -> None:
    watch: TableWatch[str] = TableWatch()
    watch.changed()
    asked = asyncio.ensure_future(watch.next_change("slave", 1, 2))
    await settled(lambda: watch.followers == 1)
    watch.begin_term()
    assert watch.followers == 0
    assert await asked == 1


async def test_a_question_is_answered_in_the_end_without_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_watch, "HOLD_S", 0.02)
    watch: TableWatch[str] = TableWatch()
    assert await watch.next_change("slave", 0) == 0
