"""Brokers with a topic `T`, stopped at the end of a test."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.pop.rig import Rig, Starter


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Starter]:
    running: list[Rig] = []

    async def starter(**keys: Any) -> Rig:
        rig = Rig(tmp_path / "store", keys)
        await rig.start()
        running.append(rig)
        await rig.create()
        return rig

    yield starter
    for rig in running:
        await rig.stop()
