"""Groups of one controller and of three."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.integration.controller.group import Group


@pytest.fixture
async def one(tmp_path: Path) -> AsyncIterator[Group]:
    group = Group(tmp_path, 1, scan_not_active_broker_interval=100, scan_inactive_master_interval=100)
    await group.start()
    await group.leader()
    yield group
    await group.stop_all()


@pytest.fixture
async def three(tmp_path: Path) -> AsyncIterator[Group]:
    group = Group(tmp_path, 3)
    await group.start()
    await group.leader()
    yield group
    await group.stop_all()
