"""The first result counts, and an event ends work."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine
from functools import partial
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


async def test_without_a_pause_the_next_way_is_tried_only_when_one_fails() -> None:
    ended: list[str] = []
    ways = [way(0, LookupError("a"), ended), way(0.05, "b", ended), way(0, "never tried", ended)]
    assert await first_result(ways, None, LookupError) == "b"


async def test_failures_at_the_time_of_the_result_are_not_logged() -> None:
    """asyncio logs exceptions that nobody asked for."""
    loop, logged = asyncio.get_running_loop(), []
    loop.set_exception_handler(lambda _, context: logged.append(context["message"]))
    event = asyncio.Event()

    async def take(result: str | Exception) -> str:
        await event.wait()
        if isinstance(result, Exception):
            raise result
        return result

    ways = [partial(take, "a"), *(partial(take, LookupError("b")) for _ in range(5))]
    loop.call_later(0.1, event.set)
    assert await first_result(ways, 0.001, LookupError) == "a"
    gc.collect()
    assert not logged


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
