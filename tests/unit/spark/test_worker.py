"""What a task does for its Python worker."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest

from batonmq.spark import worker


@pytest.fixture
def changes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    calls: list[int] = []
    monkeypatch.setattr(worker, "_settled", 0)
    monkeypatch.setattr(gc, "freeze", lambda: calls.append(1))
    monkeypatch.setattr(worker, "keep_freed_memory", lambda large: calls.append(large))
    yield calls


def run_as(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    main = ModuleType("__main__")
    main.__spec__ = ModuleSpec(module, None)
    monkeypatch.setitem(sys.modules, "__main__", main)


@pytest.mark.parametrize(
    "module", ["pyspark.daemon", "pyspark.worker", "pyspark.sql.worker.plan_data_source_read"]
)
def test_the_first_tasks_of_a_worker_exempt_its_modules(
    module: str, changes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_as(module, monkeypatch)
    for _ in range(10):
        worker.settle()
    # The memory is set once; later tasks would exempt garbage only.
    assert changes == [8 << 20, 1, 1, 1]


@pytest.mark.parametrize("module", ["pytest", "batonmq", "pysparkling"])
def test_a_users_process_keeps_its_garbage_collection(
    module: str, changes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_as(module, monkeypatch)
    worker.settle()
    assert not changes


def test_a_module_without_a_spec_is_a_users(changes: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    main = ModuleType("__main__")
    main.__spec__ = None
    monkeypatch.setitem(sys.modules, "__main__", main)
    worker.settle()
    assert not changes
