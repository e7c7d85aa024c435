"""What holds for all tests.

Tests run pure Python unless ``BATONMQ_PURE=0`` is set. With it they run the compiled modules of the install,
and leave out the unit tests and the simulation: these put fakes where a compiled class accepts its own kind
only, and replace functions that compiled modules call directly.
"""

import os
from pathlib import Path

# Before anything imports batonmq; programs that tests start inherit it.
os.environ.setdefault("BATONMQ_PURE", "1")

import pytest
from hypothesis import settings

from batonmq._compiled import COMPILED

# A property test may take its time, or a busy machine would fail it.
settings.register_profile("batonmq", deadline=None)
settings.load_profile("batonmq")

PURE_ONLY = [Path(__file__).parent / name for name in ("unit", "simulation")]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs pure Python where it does not run."""
    if not COMPILED:
        return
    for item in items:
        if item.get_closest_marker("pure") or any(item.path.is_relative_to(each) for each in PURE_ONLY):
            item.add_marker(pytest.mark.skip(reason="needs pure Python: BATONMQ_PURE=1"))
