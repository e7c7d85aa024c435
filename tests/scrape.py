"""What Prometheus would read from a program's port."""

from __future__ import annotations

import urllib.request
from collections.abc import Mapping

from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families


def families(port: int, host: str = "127.0.0.1") -> list[Metric]:
    """One scrape, parsed by Prometheus' own library. Blocks: call it in a thread."""
    with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=10) as answer:
        return list(text_string_to_metric_families(answer.read().decode()))


def scrape(port: int, *, without: Mapping[str, str] | None = None) -> dict[str, float]:
    """Sample -> value; a sample is written ``name{label=value,…}`` with the labels sorted, empty ones left
    out as Prometheus does. `without` are labels that every sample must have and that are not shown."""
    samples = {}
    for family in families(port):
        for sample in family.samples:
            labels = {name: value for name, value in sample.labels.items() if value}
            for name, value in (without or {}).items():
                assert labels.pop(name, None) == value or not labels, (sample, name)
            shown = ",".join(f"{name}={value}" for name, value in sorted(labels.items()))
            samples[f"{sample.name}{{{shown}}}"] = sample.value
    return samples
