"""What a run measured, in the shape that ``batonmq spark bench-report`` reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from batonmq.spark.jobs.bench import OURS, Figure

RATES = {"per_s": ("requests", "requests/s"), "p50_ms": ("p50", "ms"), "p99_ms": ("p99", "ms")}


def figures_of(found: Mapping[str, Any]) -> list[Figure]:
    """`found`: the parts that the JSON file has."""
    return [
        Figure(
            benchmark="controllers", figure=figure, unit=unit, system=system, passes=list(map(float, passes))
        )
        for system, figure, unit, passes in _values(found)
        if passes
    ]


def _values(found: Mapping[str, Any]) -> Iterator[tuple[str, str, str, Sequence[float]]]:
    for system, phases in found.get("load", {}).items():
        for phase, rate in phases.items():
            for key, (name, unit) in RATES.items():
                yield system, f"{phase}: {name}", unit, [each[key] for each in rate["rounds"]]
    for point in found.get("curve", ()):
        yield OURS, f"{point['sets']} sets: the leader's processor", "%", [point["leader_percent"]]
        yield OURS, f"{point['sets']} sets: the leader's memory", "MB", [point["leader_mb"]]
    if "deaths" in found:
        yield OURS, "many masters die: until a slave is notified", "ms", found["deaths"]["ms"]
    for part, title in (("kill", "the leader is killed"), ("hang", "the leader hangs")):
        if part in found:
            yield OURS, f"{title}: until the next write", "ms", found[part]["ms"]
    if "restart" in found:
        yield OURS, "restart: one controller", "s", found["restart"]["one_s"]
        yield OURS, "restart: the whole group", "s", found["restart"]["all_s"]
