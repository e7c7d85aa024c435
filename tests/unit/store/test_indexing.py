"""The index of keys: what queries find, and how the log is read for it."""

from __future__ import annotations

import errno
import struct

import pytest
from tests.unit.store.helpers import numbered

from batonmq.protocol.message.record import decode_record
from batonmq.store import commitlog, index, indexer, mapped
from batonmq.store.index import IndexFile


def keyed(opener, count, size=10):
    return [opener.message(b"%-*d" % (size, n), KEYS=f"k{n}") for n in range(count)]


def found_numbers(store, count):
    """Which of `keyed` the index finds, and each at its place."""
    found = [store._indexer.query("T", f"k{n}", 64, 0, 1 << 62).records for n in range(count)]
    return [[int(decode_record(record).body) for record in records] for records in found]


def test_keys_are_found_newest_first_within_times(opener):
    store = opener()
    begin = opener.clock.now_ms()
    for n in range(100):
        opener.put(store, opener.message(b"%d" % n, KEYS=f"a{n % 10} common", UNIQ_KEY=f"U{n}"))
        opener.clock.advance(1000)

    def bodies(key, count=64, **times):
        return [decode_record(r).body for r in store.query_by_key("T", key, count, **times).records]

    assert bodies("U42") == [b"42"]
    assert bodies("a3") == [b"%d" % n for n in range(93, 0, -10)]
    assert bodies("common", 3) == [b"99", b"98", b"97"]
    assert bodies("a3", begin_ms=begin + 13_000, end_ms=begin + 33_000) == [b"33", b"23", b"13"]
    assert bodies("a", 5) == []
    assert store.query_by_key("other", "a3", 5).records == []
    assert len(store._indexer._index.files) > 3


def test_a_key_longer_than_any_message_has_is_not_searched(opener, monkeypatch):
    """Its hash code would take seconds, and everybody would wait."""
    store = opener()
    opener.put(store, *keyed(opener, 5))
    store.build_index()
    asked = []
    monkeypatch.setattr(index, "java_hash", lambda key: asked.append(len(key)) or 0)
    assert not store.query_by_key("T", "k" * (1 << 20), 10).records
    assert not store.query_by_key("T", "k" * 32_767, 10).records
    assert asked == [32_769]


@pytest.mark.parametrize("size", [10, 5_000, 14_000])
def test_an_index_far_behind_is_built_from_what_was_read_of_the_files(opener, monkeypatch, size):
    """Across file ends, and with records larger than what is read at once: all are found, none is twice, and
    none of it comes from the map, whose pages may have left memory."""
    monkeypatch.setattr(indexer, "READ_BYTES", 8 * 1024)
    store = opener(mapped_file_size_commit_log=64 * 1024)
    assert store.index_reading() is None
    count = 400_000 // (size + 150)
    opener.put(store, *keyed(opener, count, size))
    assert len(store._log.files.files) > 3
    by_map, pieces = [], 0
    read_records = indexer.read_records

    def watched(data, begin, end):
        if not isinstance(data, bytes):
            by_map.append(store._indexer._position)
        return read_records(data, begin, end)

    monkeypatch.setattr(indexer, "read_records", watched)
    more = True
    while more:
        while (job := store.index_reading()) is not None:
            job()
            pieces += 1
        more = store.build_index(5)
    assert pieces > 10
    assert all(store.max_offset - position <= 8 * 1024 for position in by_map)
    assert found_numbers(store, count) == [[n] for n in range(count)]


def test_a_query_finds_what_is_behind_what_was_read_ahead(opener, monkeypatch):
    monkeypatch.setattr(indexer, "READ_BYTES", 8 * 1024)
    store = opener()
    opener.put(store, *keyed(opener, 500))
    job = store.index_reading()
    assert job is not None
    job()
    assert len(store.query_by_key("T", "k499", 10).records) == 1


def test_what_was_read_for_the_index_is_forgotten_when_the_log_is_cut(opener, monkeypatch):
    monkeypatch.setattr(indexer, "READ_BYTES", 8 * 1024)
    store = opener()
    opener.put(store, *keyed(opener, 50))
    half = store.max_offset
    opener.put(store, *keyed(opener, 200))
    job = store.index_reading()
    assert job is not None
    store.build_index(10)
    store.truncate(half)
    job()
    opener.put(store, *[opener.message(b"%d" % (1000 + n), KEYS=f"k{n}") for n in range(50)])
    more = True
    while more:
        if (job := store.index_reading()) is not None:
            job()
        more = store.build_index(7)
    assert [sorted(numbers) for numbers in found_numbers(store, 50)] == [[n, 1000 + n] for n in range(50)]


def test_what_could_not_be_read_for_the_index_is_tried_again(opener, monkeypatch):
    """Whoever goes on to a page that the disk cannot bring is ended by SIGBUS."""
    monkeypatch.setattr(indexer, "READ_BYTES", 8 * 1024)
    store = opener()
    opener.put(store, *numbered(opener, 2000))

    def broken(path, position, size):
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(commitlog, "read_path", broken)
        for _ in range(3):
            job = store.index_reading()
            assert job is not None
            with pytest.raises(OSError, match="Input/output error"):
                job()
    job = store.index_reading()
    assert job is not None
    job()
    assert store.index_reading() is None


def test_neither_a_query_nor_the_stop_touches_what_the_disk_did_not_give_the_index(opener, monkeypatch):
    monkeypatch.setattr(indexer, "READ_BYTES", 8 * 1024)
    store = opener()
    opener.put(store, *keyed(opener, 500))

    def broken(path, position, size):
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(commitlog, "read_path", broken)
        job = store.index_reading()
        assert job is not None
        with pytest.raises(OSError, match="Input/output error"):
            job()
        patch.setattr(indexer, "read_records", lambda *data: pytest.fail("SIGBUS"))
        assert not store.query_by_key("T", "k0", 10).records
        assert not store.build_index()


def test_what_could_not_be_read_for_the_index_is_asked_for_when_little_is_left_too(opener, monkeypatch):
    """The log may have been cut behind it meanwhile."""
    monkeypatch.setattr(indexer, "READ_BYTES", 8 * 1024)
    store = opener()
    opener.put(store, *keyed(opener, 10))
    half = store.max_offset
    opener.put(store, *keyed(opener, 200))

    def broken(path, position, size):
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(commitlog, "read_path", broken)
        job = store.index_reading()
        assert job is not None
        with pytest.raises(OSError, match="Input/output error"):
            job()
    store.truncate(half)
    job = store.index_reading()
    assert job is not None
    job()
    store.build_index()
    assert store.index_reading() is None
    assert found_numbers(store, 10) == [[n] for n in range(10)]


def test_a_size_that_rotted_does_not_make_the_index_read_the_file_again_and_again(opener, monkeypatch):
    monkeypatch.setattr(indexer, "READ_BYTES", 8 * 1024)
    store = opener()
    opener.put(store, *keyed(opener, 500))
    with store._log.files.files[0].path.open("r+b") as file:
        file.write(struct.pack(">i", 1 << 30))
    read = []
    reading = mapped.read_path
    monkeypatch.setattr(commitlog, "read_path", lambda *asked: (read.append(asked), reading(*asked))[1])
    for _ in range(5):
        while (job := store.index_reading()) is not None:
            job()
        assert not store.build_index()
    assert [size for _, _, size in read] == [8 * 1024]


def test_a_file_deleted_by_hand_is_indexed_by_its_map(opener, monkeypatch):
    monkeypatch.setattr(indexer, "READ_BYTES", 8 * 1024)
    store = opener()
    opener.put(store, *keyed(opener, 500))
    store._log.files.files[0].path.rename(store._log.files.files[0].path.with_suffix(".gone"))
    more = True
    while more:
        while (job := store.index_reading()) is not None:
            job()
        more = store.build_index(50)
    assert found_numbers(store, 500) == [[n] for n in range(500)]
    store._log.files.files[0].path.with_suffix(".gone").rename(store._log.files.files[0].path)


def test_a_record_that_cannot_be_read_stops_indexing_and_is_not_asked_for_for_ever(opener):
    store = opener()
    results = opener.put(store, *[opener.message(b"%d" % n, KEYS=f"k{n}") for n in range(3)])
    store.dispatch()
    begin = results[0].end_offset
    store._log.files.file_at(begin).write(begin, bytes(results[1].end_offset - begin))
    store.build_index()
    assert not store.build_index()


def test_a_full_index_is_logged_once_and_continues_later(opener, monkeypatch, caplog):
    store = opener()
    opener.put(store, *[opener.message(KEYS="k") for _ in range(3)])

    def full(self, keys):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(IndexFile, "add", full)
    for _ in range(3):
        assert not store.build_index()
    assert caplog.text.count("the index cannot be written") == 1
    monkeypatch.undo()
    store.build_index()
    assert "the index is written again" in caplog.text
    assert len(store.query_by_key("T", "k", 10).records) == 3
