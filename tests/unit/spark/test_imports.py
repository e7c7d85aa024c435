"""Spark plans queries in new processes: what they import delays every query."""

from __future__ import annotations

import subprocess
import sys

import pytest

NOT_TO_PLAN = {
    "batonmq.spark.source": {"batonmq.spark.sink", "batonmq.spark.decode", "pyarrow.compute", "pandas"},
    "batonmq.spark.store.source": {
        "batonmq.net",
        "batonmq.client",
        "batonmq.spark.decode",
        "batonmq.spark.store.tables",
        "pyarrow.compute",
        "pandas",
        "uvloop",
    },
}
"""Source -> what only its tasks need, or only some queries."""


@pytest.mark.parametrize("source", NOT_TO_PLAN)
def test_a_source_imports_what_planning_needs(source: str) -> None:
    listed = subprocess.run(
        [sys.executable, "-c", f"import sys, {source}; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert source in listed
    assert not NOT_TO_PLAN[source].intersection(listed)
