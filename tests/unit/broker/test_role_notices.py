"""Which queries a notice of a new master causes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from batonmq.broker.replica import role_notices
from batonmq.broker.replica.role_notices import RoleNotices
from batonmq.net.errors import ConnectFailed

FORGED = (1 << 31) - 1


class Controllers:
    """They know one epoch and record the queries."""

    def __init__(self) -> None:
        self.epoch = 1
        self.known = 1
        self.silent = False
        self.asked: list[int] = []
        self.notices = RoleNotices(lambda: self.known, self._ask)

    async def _ask(self, epoch: int) -> bool:
        self.asked.append(epoch)
        await asyncio.sleep(0)
        if self.silent:
            raise ConnectFailed("controller", "gone")
        self.known = max(self.known, self.epoch)
        return self.known >= epoch


@pytest.fixture
async def controllers() -> AsyncIterator[Controllers]:
    started = Controllers()
    running = asyncio.create_task(started.notices.run())
    yield started
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running


async def test_a_true_notice_causes_a_query_at_once(controllers: Controllers) -> None:
    controllers.epoch = 2
    controllers.notices.notified(2)
    for _ in range(5):
        await asyncio.sleep(0)
    assert controllers.known == 2 and controllers.asked == [2]


async def test_a_known_epoch_causes_no_query(controllers: Controllers) -> None:
    for epoch in (-5, 0, 1):
        controllers.notices.notified(epoch)
    await asyncio.sleep(0.02)
    assert controllers.asked == []


async def test_many_false_notices_cause_few_queries_and_hide_no_true_one(controllers: Controllers) -> None:
    loop = asyncio.get_running_loop()
    end = loop.time() + 0.45
    while loop.time() < end:
        controllers.notices.notified(FORGED)
        await asyncio.sleep(0.001)
    assert 2 <= len(controllers.asked) <= 6
    assert controllers.known == 1
    controllers.epoch = 2
    controllers.notices.notified(2)
    await asyncio.sleep(role_notices.PAUSE_S + 0.1)
    assert controllers.known == 2


async def test_the_query_is_repeated_while_no_controller_answers(
    controllers: Controllers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(role_notices, "PAUSE_S", 0.001)
    controllers.silent = True
    controllers.notices.notified(2)
    await asyncio.sleep(0.01)
    assert len(controllers.asked) > 1
    controllers.silent, controllers.epoch = False, 2
    await asyncio.sleep(0.01)
    assert controllers.known == 2
    controllers.silent = True
    controllers.asked.clear()
    controllers.notices.notified(3)
    await asyncio.sleep(0.2)
    assert len(controllers.asked) == role_notices.TRIES, "the number of tries is limited"
