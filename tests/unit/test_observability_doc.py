"""The tables of metrics in the documentation are what the programs declare."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from batonmq.broker.parts import all_metrics
from batonmq.common.config import keys_of
from batonmq.common.metrics import Metric
from batonmq.common.metrics_config import MetricsConfig
from batonmq.controller import metrics as controller

PAGE = Path(__file__).parents[2] / "docs" / "observability.md"
HEAD = "| metric | kind | unit | labels | meaning |\n| --- | --- | --- | --- | --- |\n"


def table(metrics: Sequence[Metric]) -> str:
    """The table that the page must contain."""
    return HEAD + "\n".join(
        f"| `{m.prometheus_name}` | {m.kind.value} | {m.unit} | {', '.join(m.labels)} | {m.help} |"
        for m in metrics
    )


@pytest.mark.parametrize("metrics", [controller.METRICS, all_metrics()], ids=["controllers", "brokers"])
def test_the_page_has_the_metrics_that_are_exported(metrics: Sequence[Metric]) -> None:
    assert table(metrics) in PAGE.read_text(encoding="utf-8"), f"put this in its place:\n{table(metrics)}"


def test_the_page_names_every_key() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert {key for key in keys_of([MetricsConfig]) if key not in page} == set()
