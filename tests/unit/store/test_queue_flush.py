"""Several threads flush many consume queues: they share the commits of the file system's journal."""

from __future__ import annotations

import contextlib
import errno
import os
import threading

import pytest

from batonmq.store import queues
from batonmq.store.checkpoint import Checkpoint


@pytest.mark.pure
@pytest.mark.parametrize("failing", [None, errno.EIO, errno.EMFILE])
def test_many_consume_queues_are_flushed_by_several_threads(opener, monkeypatch, failing):
    """One after the other, 20,000 light queues took two minutes, also at the stop."""
    store, count = opener(), 300
    for number in range(count):
        opener.put(store, opener.message(b"%d" % number, queue_id=number))
    path_of = {number: opener.root / f"store/consumequeue/T/{number}/{0:020}" for number in range(count)}
    failures = [] if failing is None else [OSError(failing, os.strerror(failing))]
    synced, together = set(), threading.Barrier(2)

    def sync_path(path):
        if failing is None and path in (path_of[5], path_of[6]):
            together.wait(10)  # two threads, or it breaks
        if path == path_of[250] and failures:
            raise failures.pop()
        synced.add(path)

    monkeypatch.setattr(queues, "sync_path", sync_path)
    if failing is None:
        store.flush_queues()
        assert synced >= set(path_of.values())
    else:
        with pytest.raises(OSError, match=os.strerror(failing)):
            store.flush_queues()
        assert Checkpoint.load(opener.root / "store/checkpoint").safe_offset == -1
        with contextlib.suppress(OSError):
            store.flush_queues()
        assert (path_of[250] in synced) is (failing == errno.EMFILE)
    monkeypatch.undo()
    store.abandon()


@pytest.mark.pure
def test_many_consume_queues_are_flushed_without_further_threads(opener, monkeypatch):
    store, synced = opener(), []
    for number in range(300):
        opener.put(store, opener.message(b"x", queue_id=number))

    def refuse(*_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading, "_start_new_thread", refuse)
    monkeypatch.setattr(queues, "sync_path", synced.append)
    store.flush_queues()
    assert len([path for path in synced if path.is_file()]) == 300
    monkeypatch.undo()
    store.abandon()
