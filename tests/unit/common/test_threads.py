"""Pools of threads when the system lets them start no more."""

from __future__ import annotations

import threading
from typing import NoReturn

import pytest

from batonmq.common.threads import Threads


def refuse(*_: object) -> NoReturn:
    raise RuntimeError("can't start new thread")


def test_work_waits_for_the_threads_that_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    go, done = threading.Event(), list[int]()
    with Threads(4) as threads:
        threads.begin()
        threads.submit(go.wait)
        monkeypatch.setattr(threading, "_start_new_thread", refuse)
        works = [threads.submit(done.append, number) for number in range(3)]
        assert not done
        go.set()
        for work in works:
            work.result(5)
        assert done == [0, 1, 2]
        assert len(threads._threads) == 1


def test_a_pool_that_never_got_a_thread_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "_start_new_thread", refuse)
    with Threads(1) as threads, pytest.raises(RuntimeError, match="can't start new thread"):
        threads.begin()
