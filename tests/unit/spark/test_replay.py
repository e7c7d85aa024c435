"""What a replay reads and when; its chunks and its state, without Spark."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batonmq.spark.jobs import replay as job
from batonmq.spark.jobs.replay import Replay, ReplayError, Window
from batonmq.spark.plan import backlog
from batonmq.spark.sink.exactly_once.ledger import Ledger

WINDOW = Window("s", {"T": {"a:0": 5, "a:1": 0}}, {"T": {"a:0": 25, "a:1": 3}}, 10)


@given(
    st.dictionaries(
        st.sampled_from(["a:0", "a:1", "b:0"]), st.tuples(st.integers(0, 50), st.integers(0, 50))
    ),
    st.integers(1, 40),
)
def test_chunks_cover_the_window_once_and_in_order(queues: dict[str, tuple[int, int]], rows: int) -> None:
    start = {"T": {queue: first for queue, (first, _) in queues.items()}}
    end = {"T": {queue: first + count for queue, (first, count) in queues.items()}}
    window = Window("s", start, end, rows)
    at = start
    for begin, until in window.chunks():
        assert begin == at and 0 < backlog(begin, until) <= rows
        at = until
    assert backlog(at, end) == 0
    assert list(Window.from_json(window.to_json()).chunks()) == list(window.chunks())


def wanted(path: Path, **fields: Any) -> Replay:
    return Replay("a:9876", "T", "U", path, **fields)


@pytest.fixture
def fixed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The cluster: each look gives other offsets. Returns how often it was looked at."""
    looks: list[int] = []

    def offsets(_: Replay) -> Any:
        looks.append(1)
        return {"T": {"a:0": 0}}, {"T": {"a:0": 100 * len(looks)}}

    monkeypatch.setattr(job, "_offsets", offsets)
    return looks


def test_a_second_run_has_the_window_of_the_first(tmp_path: Path, fixed: list[int]) -> None:
    one = wanted(tmp_path / "state")
    assert job.window_of(one).rows == job.window_of(one).rows == 100
    assert len(fixed) == 1


def test_an_empty_window_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages that come later are in the window of the next run."""
    monkeypatch.setattr(job, "_offsets", lambda _: ({}, {}))
    assert job.window_of(wanted(tmp_path / "state")).rows == 0
    monkeypatch.setattr(job, "_offsets", lambda _: ({"T": {"a:0": 0}}, {"T": {"a:0": 3}}))
    assert job.window_of(wanted(tmp_path / "state")).rows == 3


@pytest.mark.parametrize(
    "change", [{"target": "V"}, {"where": "true"}, {"from_ms": 7}, {"keep_queues": True}]
)
def test_another_replay_does_not_go_on_with_the_state_of_this_one(
    tmp_path: Path, fixed: list[int], change: dict[str, Any]
) -> None:
    one = wanted(tmp_path)
    job.window_of(one)
    job.window_of(replace(one, rate=5))  # the speed may change
    with pytest.raises(ReplayError, match="belongs to another replay"):
        job.window_of(replace(one, **change))


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"source": 1}', b"\xff"])
def test_a_damaged_state_is_named(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "window.json").write_bytes(data)
    with pytest.raises(ReplayError, match=r"window\.json is damaged"):
        job.window_of(wanted(tmp_path))


def test_chunks_that_are_done_are_left_out_and_the_speed_is_kept(
    tmp_path: Path, fixed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    written: list[tuple[str, float]] = []
    seen: list[tuple[int, int]] = []

    def write(_: Any, one: Replay, name: str) -> None:
        written.append((name, now[0]))
        now[0] += 0.5  # what a chunk takes
        ledger = Ledger(one.state / name)
        ledger.decide(0, [])
        ledger.finish(0)

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(job, "_rows", lambda *_: None)
    monkeypatch.setattr(job, "_write", write)
    one = wanted(tmp_path, rate=5)  # 100 messages in 4 chunks of 25
    ledger = Ledger(tmp_path / "chunk-1")
    ledger.decide(0, [])
    ledger.finish(0)
    done = job.run(None, one, progress=lambda *p: seen.append(p), clock=lambda: now[0], sleep=sleep)  # type: ignore[arg-type]
    assert written == [("chunk-0", 0.0), ("chunk-2", 5.0), ("chunk-3", 10.0)]
    assert (done.rows, done.chunks, done.skipped) == (100, 4, 1)
    assert seen == [(25, 100), (50, 100), (75, 100), (100, 100)]
    assert job.run(None, one, clock=lambda: now[0], sleep=sleep).skipped == 4  # type: ignore[arg-type]
    assert len(written) == 3
