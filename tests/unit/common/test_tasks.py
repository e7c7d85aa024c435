"""Background tasks: what is to go on goes on after a failure."""

from __future__ import annotations

import asyncio
import logging

import pytest

from batonmq.common import tasks
from batonmq.common.tasks import Tasks


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "AGAIN_S", 0.001)
    monkeypatch.setattr(tasks, "AGAIN_MOST_S", 0.004)


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR]


async def test_lasting_work_continues_after_failures_which_are_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    failures: list[Exception] = [ValueError("a")] * 5 + [KeyError("b")] * 2
    owner = Tasks()

    async def work() -> None:
        await asyncio.sleep(0)
        if failures:
            raise failures.pop(0)

    async with asyncio.timeout(5):
        await owner.keep(work, "the work")
    assert not failures
    assert errors(caplog) == ["the work: failed, trying again until it works"] * 2
    assert all(each.exc_info for each in caplog.records)


async def test_a_failure_after_a_long_time_is_a_new_one(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "RECOVERED_S", 0.01)
    left = 3

    async def work() -> None:
        nonlocal left
        left -= 1
        await asyncio.sleep(0.02)
        if left:
            raise ValueError("a")

    async with asyncio.timeout(5):
        await Tasks().keep(work, "the work")
    assert len(errors(caplog)) == 2


async def test_the_end_of_the_owner_ends_it_between_attempts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "AGAIN_S", 60.0)
    owner = Tasks()

    async def work() -> None:
        raise ValueError("a")

    task = owner.keep(work, "the work")
    await asyncio.sleep(0.01)
    await owner.cancel()
    assert task.cancelled()
