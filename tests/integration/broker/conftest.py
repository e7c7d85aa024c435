"""Brokers that a test starts are stopped at its end."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.integration.broker.rig import Starter, starting


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Starter]:
    async with starting(tmp_path / "store") as start:
        yield start
