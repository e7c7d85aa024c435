"""What is left after a crash, at any point, comes back: property tests against a plain model."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import random
import shutil
import threading
from itertools import product

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from batonmq.protocol.message.record import decode_record
from batonmq.store import queues
from batonmq.store.checkpoint import Checkpoint
from batonmq.store.store import MessageStore
from batonmq.store.verify import verify

SLOW = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


def lose(root, flushed: int, file_size: int, rng: random.Random) -> None:
    """What a power failure may do: of all pages written after the flush only some are there."""
    for path in sorted((root / "commitlog").iterdir()):
        data = bytearray(path.read_bytes())
        base = int(path.name)
        for page in range(0, file_size, 512):
            begin = max(page, flushed - base)
            if begin < page + 512 and rng.random() < 0.5:
                data[begin : page + 512] = bytes(page + 512 - begin)
        path.write_bytes(data)


def lose_units(root, rng: random.Random, safe_end: int) -> None:
    """The same for consume queues, of which everything below `safe_end` was flushed."""
    for path in root.glob("consumequeue/*/*/*"):
        data = bytearray(path.read_bytes())
        for at in range(0, len(data), 20):
            end = int.from_bytes(data[at : at + 8], "big") + int.from_bytes(data[at + 8 : at + 12], "big")
            if end > safe_end and rng.random() < 0.5:
                data[at : at + 20] = bytes(20)
        path.write_bytes(data)


def test_a_tail_torn_at_any_byte_is_cut_and_nothing_else(opener):
    store = opener()
    results = opener.put(store, *[opener.message(b"%d" % n, TAGS="t") for n in range(6)])
    store.abandon()
    whole = (opener.root / "store/commitlog" / ("0" * 20)).read_bytes()
    last = results[-1]
    for cut in range(last.physical_offset, last.end_offset):
        root = opener.root / "torn"
        shutil.copytree(opener.root / "store", root)
        (root / "commitlog" / ("0" * 20)).write_bytes(whole[:cut].ljust(len(whole), b"\0"))
        torn = opener("torn")
        # Trailing zeros of a record are no loss: the record is whole without the bytes that are zero anyway.
        kept = 6 if whole[cut : last.end_offset].strip(b"\0") == b"" else 5
        assert opener.bodies(torn) == [b"%d" % n for n in range(kept)], cut
        (result,) = opener.put(torn, opener.message(b"new"))
        assert result.queue_offset == kept
        torn.close()
        shutil.rmtree(root)


@pytest.mark.parametrize("seed", range(40))
def test_a_power_failure_loses_nothing_that_was_flushed(opener, seed):
    rng = random.Random(seed)
    store = opener()
    sent: list[tuple[bytes, int]] = []
    flushed_count = safe = 0
    for turn in range(rng.randrange(2, 12)):
        count = rng.randrange(1, 40)
        opener.put(
            store,
            *[
                opener.message(b"%d-%d" % (turn, n), queue_id=n % 3, KEYS=f"k{turn}-{n}")
                for n in range(count)
            ],
        )
        sent += [(b"%d-%d" % (turn, n), n % 3) for n in range(count)]
        opener.clock.advance(rng.choice([1, 10_000]))
        store.build_index(rng.randrange(60))
        if rng.random() < 0.4:
            store.flush()
            flushed_count = len(sent)
        elif rng.random() < 0.4:
            safe = store.flush_queues()
            flushed_count = len(sent)
    flushed = store.flushed_offset
    store.abandon()
    root = opener.root / "store"
    lose(root, flushed, opener.file_size, rng)
    lose_units(root, rng, safe)
    if rng.random() < 0.3:
        (root / "checkpoint").unlink(missing_ok=True)
    if rng.random() < 0.3:
        shutil.rmtree(root / "index")
    again = opener()
    assert again.max_offset >= flushed
    kept = sum(again.queue_bounds("T", q).max_offset for q in range(3))
    assert kept >= flushed_count
    for queue in range(3):
        assert opener.bodies(again, queue) == [body for body, q in sent[:kept] if q == queue]
    while again.build_index():
        pass
    for body, _ in rng.sample(sent[:kept], min(kept, 10)):
        found = again.query_by_key("T", f"k{body.decode()}", 5).records
        assert [decode_record(record).body for record in found] == [body]
    report = verify(root)
    assert (report.ok, report.records, report.waiting) == (True, kept, 0)


steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(1, 30), st.integers(0, 2)),
        st.tuples(st.just("raw"), st.integers(1, 30), st.integers(1, 3000)),
        st.tuples(st.just("truncate"), st.integers(0, 100), st.just(0)),
        st.tuples(st.just("confirm"), st.integers(0, 100), st.just(0)),
        st.tuples(st.just("flush"), st.just(0), st.just(0)),
        st.tuples(st.just("reopen"), st.integers(0, 1), st.just(0)),
    ),
    max_size=12,
)


@settings(max_examples=60, deadline=None, suppress_health_check=SLOW)
@given(steps=steps, confirm=st.booleans())
def test_any_course_of_events_leaves_what_the_model_has(new_opener, steps, confirm):
    """The model: a list of (end offset, queue id, queue offset, body) in log order."""
    opener = new_opener()
    store = opener(confirm=confirm)
    model: list[tuple[int, int, int, bytes]] = []
    confirmed = 0
    for number, (what, amount, detail) in enumerate(steps):
        tails = [sum(1 for entry in model if entry[1] == queue) for queue in range(3)]
        if what == "put":
            wanted = [(b"%d.%d" % (number, n), (n + detail) % 3) for n in range(amount)]
            results = opener.put(store, *[opener.message(b, queue_id=q, TAGS="t") for b, q in wanted])
            for result, (body, queue) in zip(results, wanted, strict=True):
                assert result.queue_offset == tails[queue]
                tails[queue] += 1
                model.append((result.end_offset, queue, result.queue_offset, body))
        elif what == "raw":
            store.cut_torn_tail()
            other = opener(f"other{number}")
            position = 0
            while position < store.max_offset:
                view = store.read(position, 1 << 20)
                other.append_raw(position, view)
                position += len(view)
            other.dispatch()
            results = opener.put(other, *[opener.message(b"%d.%d" % (number, n)) for n in range(amount)])
            while store.max_offset < other.max_offset:
                store.append_raw(store.max_offset, other.read(store.max_offset, detail))
                store.dispatch()
            model += [
                (r.end_offset, 0, r.queue_offset, b"%d.%d" % (number, n)) for n, r in enumerate(results)
            ]
            other.abandon()
        elif what == "truncate":
            offset = store.max_offset * amount // 100
            store.truncate(offset)
            model = [entry for entry in model if entry[0] <= offset]
            store.cut_torn_tail()
            confirmed = min(confirmed, store.max_offset)  # what is cut is not confirmed either
        elif what == "confirm":
            confirmed = max(confirmed, store.max_offset * amount // 100)
            store.confirm_offset = confirmed
            store.dispatch()
        elif what == "flush":
            store.flush_queues()
        else:
            if amount:
                store.close()
            else:
                store.abandon()
            store = opener(confirm=confirm)
            assert store.max_offset >= max((entry[0] for entry in model), default=0)
            store.confirm_offset = confirmed
            store.dispatch()
        for queue in range(3):
            visible = [e[3] for e in model if e[1] == queue and (not confirm or e[0] <= confirmed)]
            assert opener.bodies(store, queue) == visible, (what, queue)
    store.close()


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


def test_a_short_recovery_starts_at_the_safe_offset_unless_java_wrote(opener):
    store = opener()
    opener.put(store, *[opener.message(b"%d" % n) for n in range(100)])
    safe = store.flush_queues()
    opener.put(store, opener.message(b"more"))
    store.abandon()
    path = opener.root / "store/checkpoint"
    assert Checkpoint.load(path).safe_offset == safe
    data = bytearray(path.read_bytes())
    data[7] ^= 1  # another time, as after a run of RocketMQ
    path.write_bytes(data)
    assert Checkpoint.load(path).safe_offset == -1
    assert opener.bodies(opener()) == [b"%d" % n for n in range(100)] + [b"more"]


def test_deleted_consume_queues_are_built_again(opener):
    store = opener()
    opener.put(store, *[opener.message(b"%d" % n) for n in range(100)])
    store.close()
    shutil.rmtree(opener.root / "store/consumequeue")
    assert opener.bodies(opener()) == [b"%d" % n for n in range(100)]


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("missing", [0, 1, 3, 5])
def test_a_consume_queue_of_which_a_file_is_missing_is_built_again(opener, caplog, clean, missing):
    store = opener()
    opener.put(store, *[opener.message(b"%d" % n, queue_id=n % 2) for n in range(200)])
    store.flush()
    store.flush_queues()
    store.close() if clean else store.abandon()
    files = sorted((opener.root / "store/consumequeue/T/0").iterdir())
    assert len(files) == 7
    files[missing].unlink()
    again = opener()
    first = 16 if missing == 0 else 0  # as after the expiry of what the first file held
    assert opener.bodies(again, 0) == [b"%d" % n for n in range(0, 200, 2)][first:]
    assert opener.bodies(again, 1) == [b"%d" % n for n in range(1, 200, 2)]
    assert ("a file is missing" in caplog.text) == (missing > 0)
    opener.put(again, opener.message(b"more", queue_id=0))
    assert opener.bodies(again, 0)[-1] == b"more"
    assert verify(opener.root / "store").ok


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("size", [0, 7, 100])
@pytest.mark.parametrize(("count", "short"), [(200, 0), (200, 3), (200, 6), (20, 0), (192, 6)])
def test_a_consume_queue_of_which_a_file_is_too_short_is_built_again(opener, clean, size, count, short):
    """Killed between the file's creation, or its cut, and the call that gives it its size; or damaged."""
    store = opener()
    opener.put(store, *[opener.message(b"%d" % n, queue_id=n % 2) for n in range(count)])
    store.flush_queues()
    store.close() if clean else store.abandon()
    os.truncate(sorted((opener.root / "store/consumequeue/T/0").iterdir())[short], size)
    for _ in range(2):
        again = opener()
        assert opener.bodies(again, 0) == [b"%d" % n for n in range(0, count, 2)]
        assert opener.bodies(again, 1) == [b"%d" % n for n in range(1, count, 2)]
        (result,) = opener.put(again, opener.message(b"%d" % count, queue_id=0))
        opener.put(again, opener.message(b"%d" % (count + 1), queue_id=1))
        assert result.queue_offset == count // 2
        count += 2
        again.close()
    assert verify(opener.root / "store").ok


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(("count", "goes"), [(200, 1), (200, 3), (200, 7), (20, 1), (192, 1), (192, 2)])
def test_a_consume_queue_whose_last_files_are_missing_is_built_again(opener, caplog, clean, count, goes):
    store = opener()
    opener.put(store, *[opener.message(b"%d" % n, queue_id=n % 2) for n in range(count)])
    store.flush()
    store.flush_queues()
    store.close() if clean else store.abandon()
    files = sorted((opener.root / "store/consumequeue/T/0").iterdir())
    assert len(files) == count // 2 // 16 + 1, "the last one has room for a unit at least"
    for path in files[-goes:]:
        path.unlink()
    for _ in range(2):
        again = opener()
        assert opener.bodies(again, 0) == [b"%d" % n for n in range(0, count, 2)]
        assert opener.bodies(again, 1) == [b"%d" % n for n in range(1, count, 2)]
        assert again.lost_bytes == 0
        again.close()
    assert caplog.text.count("the last file may be missing") == 1
    again = opener()
    opener.put(again, opener.message(b"more", queue_id=0))
    assert opener.bodies(again, 0)[-1] == b"more"
    assert verify(opener.root / "store").ok


def test_a_cut_behind_a_full_file_is_no_loss(opener, caplog):
    store = opener()
    results = opener.put(store, *[opener.message(b"%d" % n) for n in range(40)])
    store.truncate(results[32].physical_offset)
    store.close()
    again = opener()
    assert again.queue_bounds("T", 0).max_offset == 32
    assert "may be missing" not in caplog.text, caplog.text


def test_an_empty_directory_of_a_queue_without_messages_is_looked_at_once(opener, caplog):
    store = opener()
    opener.put(store, *[opener.message(b"%d" % n) for n in range(20)])
    store.close()
    (opener.root / "store/consumequeue/T/7").mkdir()
    for _ in range(3):
        again = opener()
        assert opener.bodies(again) == [b"%d" % n for n in range(20)]
        again.close()
    assert caplog.text.count("the last file may be missing") == 1


def test_a_full_last_file_as_rocketmq_leaves_it_is_looked_at_once(opener, caplog):
    store = opener()
    opener.put(store, *[opener.message(b"%d" % n) for n in range(32)])
    store.close()
    sorted((opener.root / "store/consumequeue/T/0").iterdir())[-1].unlink()
    for _ in range(3):
        again = opener()
        assert opener.bodies(again) == [b"%d" % n for n in range(32)]
        again.close()
    assert caplog.text.count("the last file may be missing") == 1


def test_a_crash_while_a_consume_queue_is_built_again_loses_nothing(opener, monkeypatch):
    store = opener()
    opener.put(store, *[opener.message(b"%d" % n, queue_id=n % 2) for n in range(200)])
    store.close()
    sorted((opener.root / "store/consumequeue/T/0").iterdir())[3].unlink()

    def power_cut(self):
        raise OSError("power")

    with monkeypatch.context() as now, pytest.raises(OSError, match="power"):
        now.setattr(MessageStore, "dispatch", power_cut)
        opener()
    assert opener.bodies(opener(), 0) == [b"%d" % n for n in range(0, 200, 2)]


def test_before_a_gap_goes_what_the_log_no_longer_holds(opener):
    store = opener()
    opener.put(store, *[opener.message(bytes(400)) for _ in range(120)])
    store.flush()
    store.flush_queues()
    store.close()
    logs = sorted((opener.root / "store/commitlog").iterdir())
    for path in logs[:-2]:
        path.unlink()
    files = sorted((opener.root / "store/consumequeue/T/0").iterdir())
    files[1].unlink()
    again = opener()
    bounds = again.queue_bounds("T", 0)
    assert bounds.max_offset == 120 and bounds.min_offset > 32
    assert len(opener.messages(again)) == 120 - bounds.min_offset
    assert not files[0].exists()


def test_bytes_of_an_older_log_behind_the_end_stay_dead(opener):
    """Cut, then written again with records of the same length: what lay behind must not come back."""
    store = opener()
    results = opener.put(store, *[opener.message(b"old%03d" % n) for n in range(60)])
    store.truncate(results[10].physical_offset)
    opener.put(store, opener.message(b"new000"))
    store.abandon()
    assert opener.bodies(opener()) == [b"old%03d" % n for n in range(10)] + [b"new000"]


def test_flushing_in_a_thread_while_the_loop_appends_and_cuts(opener):
    store = opener()
    stop = threading.Event()
    problems: list[BaseException] = []

    def flusher() -> None:
        try:
            while not stop.is_set():
                assert store.flush_queues() <= 10**9
        except BaseException as error:
            problems.append(error)

    thread = threading.Thread(target=flusher)
    thread.start()
    rng = random.Random(7)
    model: list[tuple[int, bytes]] = []
    for turn in range(60):
        results = opener.put(store, *[opener.message(b"%d-%d" % (turn, n), KEYS="k") for n in range(20)])
        model += [(result.end_offset, b"%d-%d" % (turn, n)) for n, result in enumerate(results)]
        store.build_index()
        if turn % 7 == 6:
            cut = model[rng.randrange(len(model))][0]
            store.truncate(cut)
            model = [entry for entry in model if entry[0] <= cut]
            assert store.flushed_offset <= store.max_offset == cut
    stop.set()
    thread.join()
    assert not problems
    store.abandon()
    assert opener.bodies(opener()) == [body for _, body in model]
    assert verify(opener.root / "store").ok


@pytest.mark.parametrize("left", [7, 8, 12, 19])
def test_a_unit_of_which_a_power_cut_left_a_part_is_written_again(opener, left):
    """Its first bytes were in a sector that never reached the disk: it looks like one of an old record."""
    store = opener()
    opener.put(store, *[opener.message(b"%d" % n) for n in range(40)])
    store.flush()
    store.flush_queues()
    opener.put(store, *[opener.message(b"%d" % n) for n in range(40, 60)])
    store.flush()
    store.abandon()
    torn = 40 * 20  # the first one behind the safe offset
    paths = sorted((opener.root / "store").glob("consumequeue/*/*/*"))
    (path,) = [p for p in paths if int(p.name) <= torn < int(p.name) + p.stat().st_size]
    units = bytearray(path.read_bytes())
    at = torn - int(path.name)
    assert units[at : at + left] != bytes(left)
    units[at : at + left] = bytes(left)
    path.write_bytes(units)
    again = opener()
    assert opener.bodies(again) == [b"%d" % n for n in range(60)]
    again.close()


@pytest.mark.parametrize("damage", ["zeros", "file"])
def test_a_log_that_lost_what_was_on_disk_says_so_until_it_is_as_long_again(opener, caplog, damage):
    store = opener()
    for number in range(200):
        opener.put(store, opener.message(b"%d" % number))
    end = store.flush_queues() and store.max_offset
    store.abandon()
    files = sorted((store.config.root / "commitlog").iterdir())
    if damage == "file":
        files[-1].unlink()
    else:
        with files[-1].open("r+b") as file:
            file.write(bytes(opener.file_size))
    base = int(files[-1].name)
    for _ in range(2):  # the second start finds the same, although the first one wrote checkpoints
        caplog.clear()
        again = opener()
        assert again.max_offset == base and again.lost_bytes == end - base > 0
        lines = [each.message for each in caplog.records if "bytes are lost" in each.message]
        assert len(lines) == 1 and f"ends at {base}" in lines[0] and f"up to {end}" in lines[0]
        again.flush_queues()
        assert again.lost_bytes
        again.abandon()
    third = opener()
    while third.max_offset < end:
        opener.put(third, opener.message(b"more"))
    third.flush_queues()
    assert not third.lost_bytes
    third.abandon()
    caplog.clear()
    assert opener().lost_bytes == 0 and "lost" not in caplog.text


@pytest.mark.parametrize("count", [1, 5, 60])
def test_a_log_that_lost_its_end_after_a_clean_stop_says_so(opener, caplog, count):
    """Restored from an older copy, beside newer consume queues."""
    store = opener()
    results = opener.put(store, *[opener.message(b"%d" % n) for n in range(100)])
    end, begin = store.max_offset, results[-count].physical_offset
    store.close()
    for path in (opener.root / "store/commitlog").iterdir():
        data = path.read_bytes()
        kept = min(max(0, begin - int(path.name)), len(data))
        path.write_bytes(data[:kept] + bytes(len(data) - kept))
    again = opener()
    assert again.lost_bytes >= end - begin
    assert "bytes are lost" in caplog.text
    assert opener.bodies(again) == [b"%d" % n for n in range(100 - count)]
    assert opener.put(again, opener.message())[0].queue_offset == 100 - count
    assert verify(opener.root / "store").ok


@pytest.mark.parametrize(
    ("lost", "crc"),
    [
        *product(
            [
                (8, None),  # only size and magic came through
                (84, None),
                (600, None),
                (-3, None),
                (0, 512),
            ],
            (True, False),
        ),
        ((600, 700), True),  # within the body: only the CRC shows it
    ],
)
def test_a_last_record_of_which_a_part_is_lost_after_a_clean_stop_is_noticed(opener, caplog, lost, crc):
    """Consumers would get it: the consume queues have it."""
    store = opener(check_crc_on_recover=crc)
    opener.put(store, *[opener.message(b"%d" % n) for n in range(9)])
    (last,) = opener.put(store, opener.message(b"x" * 1500, KEYS="k" * 20))
    begin, end = last.physical_offset, last.end_offset
    store.close()
    path = opener.root / "store/commitlog" / ("0" * 20)
    data = bytearray(path.read_bytes())
    record = range(begin, end)[slice(*lost)]
    data[record.start : record.stop] = bytes(len(record))
    path.write_bytes(data)
    again = opener(check_crc_on_recover=crc)
    assert again.max_offset == begin and again.lost_bytes == end - begin
    assert "bytes are lost" in caplog.text
    assert opener.bodies(again) == [b"%d" % n for n in range(9)]
    assert opener.put(again, opener.message())[0].queue_offset == 9
    assert verify(opener.root / "store").ok


def test_after_a_clean_stop_a_last_record_that_ends_with_a_zero_is_kept(opener, caplog):
    """A RocketMQ broker takes such properties. A clean stop says that they are on disk."""
    store = opener()
    (last,) = opener.put(store, opener.message(b"kept", A="x"))
    store.close()
    path = opener.root / "store/commitlog" / ("0" * 20)
    data = bytearray(path.read_bytes())
    data[last.end_offset - 2 : last.end_offset] = bytes(2)
    path.write_bytes(data)
    again = opener()
    assert again.max_offset == last.end_offset and not again.lost_bytes
    assert not caplog.text


def test_a_log_that_is_filled_up_by_another_replica_has_lost_nothing_any_more(opener):
    store = opener()
    opener.put(store, *(opener.message(b"%d" % number) for number in range(20)))
    store.flush_queues()
    store.abandon()
    (file,) = (store.config.root / "commitlog").iterdir()
    data = file.read_bytes()
    file.write_bytes(bytes(len(data)))
    again = opener()
    assert again.lost_bytes and again.max_offset == 0
    again.append_raw(0, data[:91])
    assert not again.lost_bytes


def test_after_a_crash_the_first_record_of_the_log_is_found_by_all_its_keys(opener):
    """Its offset is 0, as in an entry that was never written."""
    store = opener()
    opener.put(store, opener.message(b"1", UNIQ_KEY="u", KEYS="k"))
    store.build_index()
    store.flush_queues()
    store.abandon()
    again = opener()
    assert [len(again.query_by_key("T", key, 10).records) for key in "uk"] == [1, 1]


def test_after_a_crash_a_record_between_two_index_files_is_found_by_all_its_keys(opener):
    """The newer file is built again from the record behind the last one of the older file."""
    settings = {"max_index_num": 201, "max_hash_slot_num": 100}
    store = opener(**settings)
    for number in range(201):
        two = {"KEYS": f"k{number}"} if number >= 199 else {}
        opener.put(store, opener.message(b"%d" % number, UNIQ_KEY=f"u{number}", **two))
        if number in (198, 199):
            store.build_index()
            store.flush_queues()
            opener.clock.advance(10)
    store.build_index()
    assert len(store._indexer._index.files) == 2
    store.abandon()
    again = opener(**settings)
    assert len(again._indexer._index.files) == 1
    keys = ["u198", "u199", "k199", "u200", "k200"]
    assert [len(again.query_by_key("T", key, 10).records) for key in keys] == [1] * 5


@pytest.mark.pure
@pytest.mark.parametrize("error", [errno.EIO, errno.EMFILE])
def test_no_start_trusts_consume_queues_whose_flush_has_failed(opener, monkeypatch, error):
    store = opener()
    for number in range(6):
        opener.put(store, opener.message(b"%d" % number, queue_id=number % 2))
    failing = opener.root / "store/consumequeue/T/0" / ("0" * 20)
    assert failing.is_file()
    failures, synced = [OSError(error, os.strerror(error))], []

    def sync_path(path):
        if path == failing and failures:
            raise failures.pop()
        synced.append(path)

    monkeypatch.setattr(queues, "sync_path", sync_path)
    for _ in range(3):
        with contextlib.suppress(OSError):
            store.flush_queues()
    monkeypatch.undo()
    store.abandon()
    if error == errno.EMFILE:  # it was not synced at all, and then it was
        assert failing in synced
        assert Checkpoint.load(opener.root / "store/checkpoint").safe_offset > 0
        return
    failing.write_bytes(bytes(failing.stat().st_size))
    again = opener()
    assert [opener.bodies(again, queue_id=queue) for queue in (0, 1)] == [
        [b"0", b"2", b"4"],
        [b"1", b"3", b"5"],
    ]
