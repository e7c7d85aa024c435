"""After a crash the index finds each record by all its keys."""

from __future__ import annotations


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
