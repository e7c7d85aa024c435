"""The lag of a stream, from progress reports."""

from __future__ import annotations

import json
import logging
from types import SimpleNamespace

from batonmq.spark.lag import LagListener, lag_of


def test_lag_is_counted_queue_by_queue():
    end = json.dumps({"t": {"b:0": 5, "b:1": 7}})
    latest = json.dumps({"t": {"b:0": 15, "b:1": 7}, "u": {"b:0": 3}})
    lag = lag_of(end, latest)
    assert lag is not None
    assert lag.by_queue == {"t/b:0": 10, "t/b:1": 0, "u/b:0": 3}
    assert (lag.total, lag.min_offsets_behind_latest, lag.max_offsets_behind_latest) == (13, 0, 10)
    assert lag.avg_offsets_behind_latest == 13 / 3


def test_what_is_not_an_offset_of_ours_has_no_lag():
    for end, latest in [
        (None, "{}"),
        ("{}", None),
        ("x", "{}"),
        ("{}", "{}"),
        ("5", "6"),
        ('{"a": 1}', '{"a": 2}'),
    ]:
        assert lag_of(end, latest) is None


def progress(queue: str):
    source = SimpleNamespace(
        endOffset=json.dumps({"t": {queue: 1}}), latestOffset=json.dumps({"t": {queue: 4}})
    )
    return SimpleNamespace(progress=SimpleNamespace(name="q", id="1", sources=[source]))


def test_the_listener_reports_our_sources_only_and_survives_its_function(caplog):
    seen = []
    listener = LagListener(lambda name, lag: seen.append((name, lag.total)))
    listener.onQueryStarted(SimpleNamespace(runId="r", id="1", name="q"))
    listener.onQueryProgress(progress("0"))
    assert seen == []
    listener.onQueryProgress(progress("b:0"))
    assert seen == [("q", 3)] and listener.last["q"].total == 3
    failing = LagListener(lambda name, lag: 1 / 0)
    with caplog.at_level(logging.ERROR):
        failing.onQueryProgress(progress("b:0"))
    assert "the report of the lag of q failed" in caplog.text
    listener.onQueryTerminated(SimpleNamespace(runId="r"))
    assert listener.last == {}
