"""What is left after a crash, at any point, comes back: property tests against a plain model."""

from __future__ import annotations

import random
import shutil
import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from batonmq.protocol.message.record import decode_record
from batonmq.store.checkpoint import Checkpoint
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
