"""A crash while a store is truncated or recovered leaves a store that opens."""

from __future__ import annotations

import contextlib
import gc
import os

import pytest

from batonmq.store.verify import verify


@pytest.mark.parametrize("stop_after", range(6))
def test_a_crash_inside_truncation_leaves_a_store_that_opens(opener, monkeypatch, stop_after):
    store = opener()
    results = opener.put(store, *[opener.message(b"%d" % n, queue_id=n % 2, KEYS="k") for n in range(300)])
    while store.build_index():
        pass
    store.flush_queues()
    calls = 0

    class Stopped(Exception):
        pass

    def step(function):
        def wrapped(*args, **kwargs):
            nonlocal calls
            calls += 1
            if calls > stop_after:
                raise Stopped
            return function(*args, **kwargs)

        return wrapped

    from batonmq.store import checkpoint, commitlog, consumequeue, index

    monkeypatch.setattr(checkpoint.Checkpoint, "save", step(checkpoint.Checkpoint.save))
    monkeypatch.setattr(consumequeue.ConsumeQueue, "truncate", step(consumequeue.ConsumeQueue.truncate))
    monkeypatch.setattr(index.Index, "truncate", step(index.Index.truncate))
    monkeypatch.setattr(commitlog, "sync_path", step(commitlog.sync_path))
    with contextlib.suppress(Stopped):
        store.truncate(results[50].physical_offset)
    monkeypatch.undo()
    store.abandon()
    again = opener()
    kept = 50 if again.max_offset == results[50].physical_offset else 300
    for queue in range(2):
        assert opener.bodies(again, queue) == [b"%d" % n for n in range(queue, kept, 2)]
    assert verify(opener.root / "store").ok
    again.truncate(results[50].physical_offset)
    assert opener.put(again, opener.message())[0].queue_offset == 25


def test_a_crash_at_any_write_of_a_recovery_leaves_a_store_that_opens(opener, monkeypatch):
    store = opener()
    sent = opener.put(store, *[opener.message(b"%d" % n, queue_id=n % 2) for n in range(100)])
    log_file = store._log.files.files[-1]
    store.abandon()
    with log_file.path.open("r+b") as file:
        file.seek(sent[-1].physical_offset - log_file.base + 8)
        file.write(b"\xff" * 20)  # the last record is cut

    class Stopped(Exception):
        pass

    def step(function):
        def wrapped(*args, **kwargs):
            nonlocal left
            left -= 1
            if left < 0:
                raise Stopped
            return function(*args, **kwargs)

        return wrapped

    done, after = False, 0
    while not done:
        left = after
        with monkeypatch.context() as patch:
            for name in "ftruncate", "truncate", "pwrite", "unlink", "rmdir", "fsync":
                patch.setattr(os, name, step(getattr(os, name)))
            with contextlib.suppress(Stopped):
                opener().abandon()
                done = True
        gc.collect()  # descriptors of what did not open
        again = opener()
        for queue in range(2):
            assert opener.bodies(again, queue) == [b"%d" % n for n in range(queue, 99, 2)], after
        again.abandon()
        after += 1
    assert after > 5
    assert verify(opener.root / "store").ok
