"""What a run of `archive` counts; without Spark."""

from __future__ import annotations

from typing import Any

from batonmq.spark.jobs.archive import finish


class Query:
    """A stream of 260 micro-batches, of which Spark shows the progress of the last 100."""

    def __init__(self) -> None:
        self.batches = 0

    def awaitTermination(self, timeout: int) -> bool:
        self.batches += 65
        return self.batches >= 260

    @property
    def recentProgress(self) -> list[dict[str, Any]]:
        done = range(max(0, self.batches - 100), self.batches)
        return [{"batchId": n, "numInputRows": n % 3, "batchDuration": 500} for n in done]


def test_all_micro_batches_are_counted_and_each_once() -> None:
    done = finish(Query())  # type: ignore[arg-type]
    assert done.rows == sum(n % 3 for n in range(260))
    assert done.batches == sum(1 for n in range(260) if n % 3)
    assert done.seconds == done.batches * 0.5
