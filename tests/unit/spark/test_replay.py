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
from batonmq.spark.sink.exactly_once.core import Unit
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
def test_another_replay_does_not_continue_with_the_state_of_this_one(
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


class Clock:
    """Time that only passes where a chunk is written or the job sleeps; notes what was written when."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.slow: dict[str, float] = {}
        self.written: list[tuple[str, int, float]] = []
        """Name, messages and time of each chunk."""
        self.dies_at: str | None = None
        monkeypatch.setattr(job, "_rows", lambda session, replay, start, end: backlog(start, end))
        monkeypatch.setattr(job, "_write", self._write)

    def _write(self, rows: Any, one: Replay, name: str) -> None:
        ledger = Ledger(one.state / name)
        ledger.run()
        if name == self.dies_at:
            raise KeyboardInterrupt
        self.written.append((name, rows, self.now))
        self.now += self.slow.get(name, 0.5)
        ledger.decide(0, [])
        ledger.finish(0)

    def _sleep(self, seconds: float) -> None:
        self.now += seconds

    def run(self, one: Replay) -> Any:
        return job.run(None, one, clock=lambda: self.now, sleep=self._sleep)  # type: ignore[arg-type]


def test_a_slow_chunk_is_not_made_up_for(
    tmp_path: Path, fixed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an outage of a minute the consumers would get the messages of a minute at once."""
    clock = Clock(monkeypatch)
    clock.slow = {"chunk-0": 60.0}
    clock.run(wanted(tmp_path, rate=5))
    assert [(rows, at) for _, rows, at in clock.written] == [(25, 0.0), (25, 60.0), (25, 65.0), (25, 70.0)]


@pytest.mark.parametrize(("first", "second"), [(None, 2), (4, 2), (2, 8), (2, None)])
def test_a_second_run_has_chunks_for_its_own_speed(
    tmp_path: Path, fixed: list[int], monkeypatch: pytest.MonkeyPatch, first: int | None, second: int | None
) -> None:
    """Who stops a replay that is too fast, and goes on with --rate, has that speed from then on."""
    monkeypatch.setattr(job, "CHUNK_ROWS", 60)
    clock = Clock(monkeypatch)
    clock.dies_at = "chunk-1"
    with pytest.raises(KeyboardInterrupt):
        clock.run(wanted(tmp_path, rate=first))
    (begun,) = [rows for _, rows, _ in clock.written]
    clock.dies_at, clock.written = None, []
    done = clock.run(wanted(tmp_path, rate=second))
    wanted_rows = 60 if second is None else second * 5
    sizes = [rows for _, rows, _ in clock.written]
    assert begun + sum(sizes) == 100 and {*sizes[:-1]} <= {wanted_rows} and 0 < sizes[-1] <= wanted_rows
    assert (done.rows, done.chunks, done.skipped) == (100, 1 + len(sizes), 1)
    assert clock.run(wanted(tmp_path, rate=3)).skipped == 1 + len(sizes)
    names = [name for name, *_ in clock.written]
    assert len({*names, "chunk-0"}) == 1 + len(sizes)


def test_a_chunk_that_a_killed_run_decides_after_all_is_not_cut_again(
    tmp_path: Path, fixed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's own process may go on for a moment after its driver was killed."""
    monkeypatch.setattr(job, "CHUNK_ROWS", 60)
    clock = Clock(monkeypatch)
    clock.dies_at = "chunk-1"
    with pytest.raises(KeyboardInterrupt):
        clock.run(wanted(tmp_path))
    unit = Unit("T", "a", 0, 0, 0, "key", 40, 10)
    decide = Ledger.decide

    def late(ledger: Ledger, epoch: int, units: Any) -> None:
        if ledger.path.name == "chunk-1" and not units:  # just before this run decides that nothing is in it
            decide(ledger, epoch, [unit])
        decide(ledger, epoch, units)

    monkeypatch.setattr(Ledger, "decide", late)
    clock.dies_at, clock.written = None, []

    def settle(rows: Any, one: Replay, name: str) -> None:
        ledger = Ledger(one.state / name)
        assert name == "chunk-1" and ledger.decided(0) == [unit]
        clock.written.append((name, rows, 0.0))
        ledger.finish(0)

    monkeypatch.setattr(job, "_write", settle)
    assert clock.run(wanted(tmp_path, rate=2)).rows == 100
    assert clock.written == [("chunk-1", 40, 0.0)]


def test_a_run_that_is_killed_while_it_cuts_the_rest_loses_nothing(
    tmp_path: Path, fixed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "CHUNK_ROWS", 60)
    clock = Clock(monkeypatch)
    clock.dies_at = "chunk-1"
    with pytest.raises(KeyboardInterrupt):
        clock.run(wanted(tmp_path))
    clock.dies_at = None
    decide = Ledger.decide
    with monkeypatch.context() as killed:

        def dies(ledger: Ledger, epoch: int, units: Any) -> None:
            raise KeyboardInterrupt

        killed.setattr(Ledger, "decide", dies)
        with pytest.raises(KeyboardInterrupt):
            clock.run(wanted(tmp_path, rate=2))
    assert Ledger.decide is decide
    clock.run(wanted(tmp_path))
    assert sum(rows for _, rows, _ in clock.written) == 100
