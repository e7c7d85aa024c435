"""A store with small files for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.spark.store.small import SmallStore


@pytest.fixture
def made(tmp_path: Path) -> Iterator[SmallStore]:
    one = SmallStore(tmp_path / "store")
    yield one
    one.store.abandon()
