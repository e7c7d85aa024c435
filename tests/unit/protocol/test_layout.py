"""The table of a record's fields, against the offsets that RocketMQ documents."""

from __future__ import annotations

import pytest

from batonmq.protocol.message.layout import (
    BODY_POSITION_V4,
    FIELDS,
    MIN_RECORD_SIZE,
    POSITIONS,
    SIZE_MAGIC,
    fields_struct,
    span_struct,
)


def test_offsets_with_ipv4_hosts() -> None:
    assert POSITIONS == {
        "size": 0,
        "magic": 4,
        "body_crc": 8,
        "queue_id": 12,
        "flag": 16,
        "queue_offset": 20,
        "physical_offset": 28,
        "sys_flag": 36,
        "born_timestamp": 40,
        "born_host": 48,
        "store_timestamp": 56,
        "store_host": 64,
        "reconsume_times": 72,
        "prepared_transaction_offset": 76,
        "body_size": 84,
    }
    assert (BODY_POSITION_V4, MIN_RECORD_SIZE, SIZE_MAGIC.size) == (88, 91, 8)


def test_a_struct_of_some_fields_skips_the_others() -> None:
    record = span_struct("size", "body_size").pack(
        *(name.encode()[:8].ljust(8) if "host" in name else number for number, name in enumerate(FIELDS))
    )
    some = ("queue_id", "physical_offset", "store_timestamp", "body_size")
    assert fields_struct(*some).unpack_from(record) == tuple(list(FIELDS).index(name) for name in some)
    assert fields_struct("queue_offset").size == POSITIONS["physical_offset"]


@pytest.mark.parametrize("names", [("magic", "size"), ("size", "topic")])
def test_names_that_are_not_in_the_records_order_are_refused(names: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="not in the record's order"):
        fields_struct(*names)
