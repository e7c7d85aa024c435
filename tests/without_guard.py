"""A pytest plugin: tests run on programs that lack one guard, see `tests/guards.py`.

    WITHOUT_GUARD=confirm-lost python -m pytest -p tests.without_guard tests/unit/ha

What then passes does not test the guard.
"""

from __future__ import annotations

import os
from contextlib import ExitStack

import pytest

_stack = ExitStack()


def pytest_configure(config: pytest.Config) -> None:
    from tests.guards import GUARDS

    _stack.enter_context(GUARDS[os.environ["WITHOUT_GUARD"]].in_force())


def pytest_unconfigure(config: pytest.Config) -> None:
    _stack.close()
