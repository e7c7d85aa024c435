"""A commit log that lost what was on the disk says so, until it is as long again."""

from __future__ import annotations

from itertools import product

import pytest

from batonmq.store.verify import verify


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
