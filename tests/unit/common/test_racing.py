"""The first result counts, and an event ends work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from batonmq.common.racing import Abandoned, first_result, unless


def way(seconds: float, result: str | Exception, ended: list[str]) -> Callable[[], Coroutine[Any, Any, str]]:
    async def take() -> str:
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            ended.append(f"{result} cancelled")
            raise
        if isinstance(result, Exception):
            raise result
        return result

    return take


async def test_the_next_way_is_tried_when_the_first_is_late() -> None:
    ended: list[str] = []
    ways = [way(60, "slow", ended), way(0, "quick", ended), way(0, "never tried", ended)]
    assert await first_result(ways, 0.02, LookupError) == "quick"
    assert ended == ["slow cancelled"]


async def test_the_next_way_is_tried_at_once_when_one_fails() -> None:
    ways = [way(0, LookupError("a"), []), way(0, "b", [])]
    async with asyncio.timeout(5):
        assert await first_result(ways, 60, LookupError) == "b"


async def test_all_failures_are_reported_in_the_order_of_time() -> None:
    ways = [way(0.1, LookupError("late"), []), way(0, LookupError("early"), [])]
    with pytest.raises(ExceptionGroup) as failed:
        await first_result(ways, 0.01, LookupError)
    assert [str(error) for error in failed.value.exceptions] == ["early", "late"]


async def test_another_exception_ends_all() -> None:
    ended: list[str] = []
    with pytest.raises(ZeroDivisionError):
        await first_result([way(60, "slow", ended), way(0, ZeroDivisionError(), ended)], 0.01, LookupError)
    assert ended == ["slow cancelled"]


async def test_who_is_cancelled_leaves_nothing_behind() -> None:
    ended: list[str] = []
    waiting = asyncio.create_task(first_result([way(60, "slow", ended)], 0.01, LookupError))
    await asyncio.sleep(0.03)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert ended == ["slow cancelled"]


async def test_an_event_ends_work() -> None:
    ended: list[str] = []
    event = asyncio.Event()
    assert await unless(event, way(0, "done", ended)()) == "done"
    asyncio.get_running_loop().call_later(0.01, event.set)
    with pytest.raises(Abandoned):
        await unless(event, way(60, "slow", ended)())
    assert ended == ["slow cancelled"]
