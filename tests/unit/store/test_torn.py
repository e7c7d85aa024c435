"""Zeros at the end of a record: the message's own, or what never reached the disk."""

from __future__ import annotations

import shutil

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from batonmq.protocol.message.record import decode_record
from batonmq.store.scan import SECTOR, Damage, check_record
from batonmq.store.verify import verify

FILE = "commitlog/" + "0" * 20
UNCHECKED = slice(36, 84)
"""Fields between a record's own offset and its body: zeros there may be lost bytes or not, and no check
knows."""


def log_of(opener, values: list[bytes]) -> tuple[bytes, list[int]]:
    """A log as another broker may have written it, with these values of a property that ends each record, and
    where its records begin and the last one ends."""
    store = opener("source")
    ends, data = [0], bytearray()
    for number, value in enumerate(values):
        (result,) = opener.put(store, opener.message(b"%d" % number, A="x" * len(value)))
        record = bytearray(store.read(result.physical_offset, result.size))
        # What put adds, a separator, is overwritten too: a client that is not ours need not send one.
        record[len(record) - len(value) :] = value
        data += record
        ends.append(len(data))
    store.abandon()
    shutil.rmtree(opener.root / "source")
    return bytes(data), ends


def opened(opener, data: bytes):
    """A store that was left with this in its log."""
    shutil.rmtree(opener.root / "store", ignore_errors=True)
    (opener.root / "store/commitlog").mkdir(parents=True)
    (opener.root / "store" / FILE).write_bytes(data.ljust(opener.file_size, b"\0"))
    (opener.root / "store/abort").touch()
    return opener()


@pytest.mark.parametrize("zeros", [1, 2, 40, 700])
def test_properties_that_end_with_zeros_are_no_torn_record(opener, zeros):
    """A message of RocketMQ's broker, copied to us: it was cut off after a crash with all that follows."""
    data, ends = log_of(opener, [b"v" + bytes(zeros), b"v", b"v"])
    assert ends[1] % SECTOR < SECTOR - 8, "what follows begins in the same sector"
    if zeros < SECTOR:
        assert opened(opener, data).max_offset == len(data)
        assert verify(opener.root / "store").records == 3
    else:  # a whole sector of zeros is more than any message has
        assert opened(opener, data).max_offset == 0


def test_a_topic_with_a_zero_byte_is_not_a_torn_record(opener):
    data, ends = log_of(opener, [b"v", b"v"])
    at = data.index(b"T", ends[1] - 30)
    data = data[: at - 1] + b"\1\0" + data[at + 1 :]
    assert check_record(data.ljust(4096, b"\0"), 0, 4096, 0, crc=True) == ends[1]


def test_zeros_that_nothing_follows_are_taken_for_torn(opener):
    """A slave that was killed in the middle of a record looks just so."""
    data, ends = log_of(opener, [b"v", b"v\0"])
    assert opened(opener, data).max_offset == ends[1]


def test_a_sector_lost_inside_long_properties_is_noticed(opener):
    data, _ = log_of(opener, [b"v" * 2000, b"v"])
    holed = data[:1024] + bytes(SECTOR) + data[1024 + SECTOR :]
    found = check_record(holed.ljust(8192, b"\0"), 0, 8192, 0, crc=True)
    assert isinstance(found, Damage) and found.torn


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_what_comes_back_is_what_was_written(opener, data):
    """Whatever sectors are lost, at whatever bytes a slave's writes began and ended, the log that comes back
    is a beginning of the one that was written; and all of what was flushed, where no zeros mislead."""
    zeros = data.draw(st.booleans(), "zeros in properties")
    byte = st.sampled_from([0, 0, 118] if zeros else [118, 119])
    value = st.lists(byte, max_size=700 if data.draw(st.booleans()) else 60).map(lambda v: b"v" + bytes(v))
    written, ends = log_of(opener, data.draw(st.lists(value, min_size=1, max_size=6)))
    moments = sorted(data.draw(st.lists(st.integers(0, len(written)), min_size=1, max_size=6)))
    flushed = moments[0]
    left = bytearray()
    for at in range(0, len(written), SECTOR):
        moment = data.draw(st.sampled_from([*moments, len(written)]), f"sector {at}")
        left += written[at : min(at + SECTOR, max(moment, at))].ljust(SECTOR, b"\0")
    store = opened(opener, bytes(left[: opener.file_size]))
    end = store.max_offset
    assert end in ends
    found = bytearray(store.read(0, end)) if end else bytearray()
    for start in ends[: ends.index(end)]:
        unchecked = slice(start + UNCHECKED.start, start + UNCHECKED.stop)
        found[unchecked] = written[unchecked]
    assert bytes(found) == written[:end]
    assert not end or decode_record(written[: ends[1]]).topic == "T"
    if not zeros:
        assert end >= max(each for each in ends if each <= flushed)
    store.abandon()
