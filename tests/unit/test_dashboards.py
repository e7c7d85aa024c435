"""The Grafana dashboards ask for metrics and labels that our programs export, and are whole."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from batonmq.broker.monitoring import metrics as broker
from batonmq.broker.parts import all_metrics
from batonmq.common.metrics import Kind, Metric
from batonmq.controller import metrics as controller

FOLDER = Path(__file__).parents[2] / "deploy" / "grafana"
DASHBOARDS = sorted(FOLDER.glob("*.json"))

ADDED_BY_PROMETHEUS = {"job", "instance"}
WORDS = {"and", "or", "unless", "bool", "offset"}


def sample_names(metric: Metric) -> list[str]:
    name = metric.prometheus_name
    return (
        [f"{name}_{part}" for part in ("bucket", "count", "sum")] if metric.kind is Kind.HISTOGRAM else [name]
    )


EXPORTED = {
    name: {*metric.labels, *common, *ADDED_BY_PROMETHEUS, *({"le"} if name.endswith("_bucket") else ())}
    for metrics, common in (
        (controller.METRICS, controller.COMMON_LABELS),
        (all_metrics(), broker.COMMON_LABELS),
    )
    for metric in metrics
    for name in sample_names(metric)
}
"""Sample -> the labels it has."""


def complaints(expression: str) -> list[str]:
    """What is wrong with a query in PromQL, as far as its names of metrics and labels go."""
    found: list[str] = []
    text = re.sub(r'"[^"]*"', '""', expression)
    labels: set[str] = set()
    for names in re.findall(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)", text):
        labels |= {name.strip() for name in names.split(",") if name.strip()}
    text = re.sub(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)", " ", text)
    text = re.sub(r"\[[^\]]*\]", " ", text)
    metrics: set[str] = set()
    for name, matchers in re.findall(r"([a-zA-Z_:][a-zA-Z0-9_:]*)\s*\{([^}]*)\}", text):
        used = set(re.findall(r"([a-zA-Z_][a-zA-Z0-9_]*)\s*(?:=~|!~|!=|=)", matchers))
        if name in EXPORTED and not used <= EXPORTED[name]:
            found.append(f"{name} has no label {', '.join(sorted(used - EXPORTED[name]))}")
        metrics.add(name)
    text = re.sub(r"\{[^}]*\}", " ", text)
    for name, call in re.findall(r"(?<![\w$])([a-zA-Z_:][a-zA-Z0-9_:]*)\b\s*(\()?", text):
        if not call and name not in WORDS:
            metrics.add(name)
    found += [f"nobody exports {name}" for name in sorted(metrics - EXPORTED.keys())]
    known = set().union(*(EXPORTED[name] for name in metrics & EXPORTED.keys()))
    if metrics and not labels <= known:
        found.append(f"no metric of the query has the label {', '.join(sorted(labels - known))}")
    return found


def queries(dashboard: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]
    for annotation in dashboard["annotations"]["list"]:
        yield annotation["name"], annotation["expr"]
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            selector, _, label = variable["definition"].removeprefix("label_values(")[:-1].rpartition(",")
            yield variable["name"], f"sum by ({label}) ({selector})"


@pytest.fixture(params=DASHBOARDS, ids=lambda path: path.name)
def dashboard(request: pytest.FixtureRequest) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(request.param.read_text(encoding="utf-8"))
    return loaded


def test_there_is_a_dashboard() -> None:
    assert [path.name for path in DASHBOARDS] == ["batonmq.json"]


@pytest.mark.parametrize(
    ("expression", "complaint"),
    [
        ('sum by (request_type) (rate(request_total{group=~"$group"}[$__rate_interval]))', None),
        ("role == 3 and on (peer_id) role", None),
        ("histogram_quantile(0.9, sum by (le) (rate(request_latency_microseconds_bucket[5m])))", None),
        ("rate(requests_total[5m])", "nobody exports requests_total"),
        ("request_latency_microseconds", "nobody exports request_latency_microseconds"),
        ('role{cluster="a"}', "role has no label cluster"),
        ("sum by (topic) (role)", "no metric of the query has the label topic"),
        ("sum by (le) (request_total)", "no metric of the query has the label le"),
    ],
)
def test_the_check_of_queries_notices_what_is_wrong(expression: str, complaint: str | None) -> None:
    assert complaints(expression) == ([] if complaint is None else [complaint])


def test_every_query_asks_for_what_is_exported(dashboard: dict[str, Any]) -> None:
    wrong = [(title, complaint) for title, query in queries(dashboard) for complaint in complaints(query)]
    assert wrong == []


GAUGES = {metric.prometheus_name for metric in all_metrics() if metric.kind is Kind.GAUGE}
SUMMED = re.compile(r"\bsum(?:\s+by\s*\([^)]*\))?\s*\(\s*(\w+)\s*\{")


def test_a_sum_of_gauges_counts_a_broker_set_once(dashboard: dict[str, Any]) -> None:
    """Slaves show lag, clients and timers as their master does: the largest of the replicas, then the sum."""
    doubled = [
        (panel["title"], name)
        for panel in dashboard["panels"]
        for target in panel.get("targets", ())
        for name in SUMMED.findall(target["expr"])
        if name in GAUGES
    ]
    assert doubled == []


def test_the_dashboard_is_whole(dashboard: dict[str, Any]) -> None:
    assert dashboard["title"] and dashboard["uid"] and dashboard["schemaVersion"] >= 39
    assert "id" not in dashboard, "an id belongs to one Grafana; the uid names the dashboard everywhere"
    declared = {variable["name"] for variable in dashboard["templating"]["list"]}
    text = json.dumps(dashboard)
    used = set(re.findall(r"\$\{?(\w+)", text))
    assert {name for name in used if not name.startswith("__")} == declared
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    titles = [panel["title"] for panel in panels]
    assert len(set(titles)) == len(titles)
    for panel in panels:
        grid = panel["gridPos"]
        assert grid["x"] >= 0 and grid["x"] + grid["w"] <= 24, panel["title"]
        if panel["type"] == "row":
            continue
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}, panel["title"]
        assert panel["targets"], panel["title"]
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
    for one, other in combinations((panel["gridPos"] for panel in panels), 2):
        apart = (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        )
        assert apart, (one, other)


def test_every_metric_is_on_a_dashboard() -> None:
    """Or somebody decided that it need not be: then name it here."""
    shown = "".join(path.read_text(encoding="utf-8") for path in DASHBOARDS)
    missing = {
        metric.name
        for metric in (*controller.METRICS, *all_metrics())
        if not any(name in shown for name in sample_names(metric))
    }
    assert missing == {
        "rocketmq_broker_permission",
        "rocketmq_consumer_queueing_latency",
        "rocketmq_consumer_ready_messages",
    }
