"""Tests of broker sets run on uvloop, as the programs do: asyncio's own server leaves a connection open
that was accepted in the very moment of `close` (python/cpython#109564), and here servers close under load."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import uvloop
from tests.integration.ha.replica_group import ReplicaGroup


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
async def group(tmp_path: Path) -> AsyncIterator[ReplicaGroup]:
    """Two replicas in sync."""
    made = ReplicaGroup(tmp_path / "group", replicas=2)
    await made.up()
    yield made
    await made.close()
