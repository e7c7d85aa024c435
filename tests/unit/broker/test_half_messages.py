"""Half messages as they are stored, committed, asked for and put back; what a check does with one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from batonmq.broker.config import BrokerConfig
from batonmq.broker.transaction import half
from batonmq.broker.transaction.batch import DeliveredRows
from batonmq.broker.transaction.half import PUT_BACK_AFTER_MS, CheckRules, Verdict
from batonmq.protocol.codes import MessageSysFlag
from batonmq.protocol.message.batch import BatchItem, decode_batch, encode_batch
from batonmq.protocol.message.errors import MessageFormatError
from batonmq.protocol.message.properties import decode_properties, encode_properties
from batonmq.protocol.message.record import MessageExt, StoredMessage, decode_record, encode_record

NOW = 1_700_000_000_000
RULES = CheckRules(timeout_ms=6_000, check_max=15, reserved_ms=72 * 3_600_000)


def message(properties: dict[str, str], **fields: Any) -> StoredMessage:
    return StoredMessage(
        **{"topic": "T", "queue_id": 3, "body": b"b", "properties": encode_properties(properties), **fields}
    )


def record(
    properties: dict[str, str] | None = None, *, age_ms: int = 0, born_ms: int = 0, **f: Any
) -> MessageExt:
    """A half message that was stored `age_ms` ago and born `born_ms` before that."""
    values = {"TRAN_MSG": "true", "REAL_TOPIC": "T", "REAL_QID": "3", "UNIQ_KEY": "U", **(properties or {})}
    stored = StoredMessage(
        topic="RMQ_SYS_TRANS_HALF_TOPIC",
        queue_id=0,
        body=b"b",
        properties=encode_properties({k: v for k, v in values.items() if v}),
        born_timestamp=NOW - age_ms - born_ms,
        **f,
    )
    return decode_record(
        encode_record(stored, queue_offset=9, physical_offset=1_000, store_timestamp=NOW - age_ms),
        inflate=False,
    )


@pytest.mark.parametrize(
    ("properties", "fields", "prepared"),
    [
        ({"TRAN_MSG": "true"}, {}, True),
        ({"TRAN_MSG": "TRUE"}, {"sys_flag": MessageSysFlag.TRANSACTION_PREPARED}, True),
        ({"TRAN_MSG": "false"}, {}, False),
        ({"TRAN_MSG": "1"}, {}, False),
        ({}, {}, False),
        ({"TRAN_MSG": "true"}, {"sys_flag": MessageSysFlag.TRANSACTION_COMMIT}, False),
        ({"TRAN_MSG": "true", "DELAY": "3"}, {"reconsume_times": 1}, False),
        ({"TRAN_MSG": "true", "DELAY": "3"}, {"reconsume_times": 0}, True),
        ({"TRAN_MSG": "true"}, {"reconsume_times": 1}, True),
    ],
)
def test_which_messages_are_half_messages(
    properties: dict[str, str], fields: dict[str, Any], prepared: bool
) -> None:
    assert half.is_prepared(message(properties, **fields), properties) is prepared


def test_a_half_message_keeps_its_place_and_id() -> None:
    properties = {"TRAN_MSG": "true", "UNIQ_KEY": "U", "TAGS": "t", "TRAN_PREPARED_QUEUE_OFFSET": "4"}
    stored = half.to_half(message(properties, sys_flag=0x4 | 0x1), properties)
    assert (stored.topic, stored.queue_id, stored.sys_flag) == ("RMQ_SYS_TRANS_HALF_TOPIC", 0, 0x1)
    assert decode_properties(stored.properties) == {
        "TRAN_MSG": "true",
        "UNIQ_KEY": "U",
        "TAGS": "t",
        "__transactionId__": "U",
        "REAL_TOPIC": "T",
        "REAL_QID": "3",
    }


@pytest.mark.parametrize("name", ["REAL_TOPIC", "REAL_QID", "__transactionId__"])
def test_what_a_sender_writes_into_the_brokers_properties_does_not_count(name: str) -> None:
    properties = {"TRAN_MSG": "true", name: "999", "UNIQ_KEY": "U"}
    stored = half.to_half(message(properties), properties)
    text = stored.properties.decode()
    assert decode_properties(text) == {
        "TRAN_MSG": "true",
        "UNIQ_KEY": "U",
        "__transactionId__": "U",
        "REAL_TOPIC": "T",
        "REAL_QID": "3",
    }
    assert text.count(f"{name}\x01") == 1


def test_a_committed_message_is_the_one_that_was_sent() -> None:
    waiting = record({"TAGS": "t", "__transactionId__": "U"}, sys_flag=0x1, flag=5, reconsume_times=2)
    stored, properties = half.to_committed(waiting, ("T", 3))
    assert (stored.topic, stored.queue_id, stored.sys_flag) == ("T", 3, 0x1 | 0x8)
    assert (stored.flag, stored.reconsume_times, stored.prepared_transaction_offset) == (5, 2, 1_000)
    assert properties == {"UNIQ_KEY": "U", "TAGS": "t", "__transactionId__": "U"}
    assert decode_properties(stored.properties) == properties


@pytest.mark.parametrize(
    "changes",
    [
        {"REAL_TOPIC": ""},
        {"REAL_QID": ""},
        {"REAL_QID": "-1"},
        {"REAL_QID": "x"},
        {"REAL_QID": "9" * 30},
        {"REAL_QID": "٣"},
    ],
)
def test_a_record_that_names_no_place_has_none(changes: dict[str, str]) -> None:
    assert half.real_place(record(changes)) is None


@pytest.mark.parametrize(
    ("properties", "age_ms", "born_ms", "here", "expected"),
    [
        ({}, 0, 0, 0, Verdict.WAIT),
        ({}, 6_000, 0, 0, Verdict.WAIT),
        ({}, 6_001, 0, 0, Verdict.CHECK),
        ({}, -5_000, 0, 0, Verdict.WAIT),  # the clock was set back
        ({}, 0, 100_000_000_000, 0, Verdict.WAIT),  # the producer's clock is wrong
        ({}, 6_001, 100_000_000_000, 0, Verdict.CHECK),
        ({}, 6_001, -100_000_000_000, 0, Verdict.CHECK),
        ({}, 60_000, 100_000_000_000, 1, Verdict.CHECK),
        ({"TRANSACTION_CHECK_TIMES": "1"}, 60_000, 100_000_000_000, 0, Verdict.GIVE_UP),
        ({}, 60_000, 0, 14, Verdict.CHECK),
        ({}, 60_000, 0, 15, Verdict.GIVE_UP),
        ({"TRANSACTION_CHECK_TIMES": "14"}, 60_000, 0, 0, Verdict.CHECK),
        ({"TRANSACTION_CHECK_TIMES": "14"}, 60_000, 0, 1, Verdict.GIVE_UP),
        ({"TRANSACTION_CHECK_TIMES": "9" * 18}, 0, 0, 0, Verdict.GIVE_UP),
        ({"TRANSACTION_CHECK_TIMES": "9" * 40}, 60_000, 0, 0, Verdict.CHECK),
        ({"TRANSACTION_CHECK_TIMES": "-5"}, 60_000, 0, 0, Verdict.CHECK),
        ({"TRANSACTION_CHECK_TIMES": "x"}, 60_000, 0, 0, Verdict.CHECK),
        ({"TRANSACTION_CHECK_TIMES": "1"}, 0, 60_000, 0, Verdict.CHECK),  # RocketMQ has put it back
        ({"CHECK_IMMUNITY_TIME_IN_SECONDS": "100"}, 100_000, 0, 0, Verdict.WAIT),
        ({"CHECK_IMMUNITY_TIME_IN_SECONDS": "100"}, 100_001, 0, 0, Verdict.CHECK),
        ({"CHECK_IMMUNITY_TIME_IN_SECONDS": "0"}, 1, 0, 0, Verdict.CHECK),
        ({"CHECK_IMMUNITY_TIME_IN_SECONDS": "soon"}, 6_000, 0, 0, Verdict.WAIT),
        ({"CHECK_IMMUNITY_TIME_IN_SECONDS": "9" * 30}, 6_001, 0, 0, Verdict.CHECK),
        ({"CHECK_IMMUNITY_TIME_IN_SECONDS": "9" * 18}, 60_000, 0, 0, Verdict.WAIT),
        ({"CHECK_IMMUNITY_TIME_IN_SECONDS": "9" * 18}, PUT_BACK_AFTER_MS + 1, 0, 0, Verdict.PUT_BACK),
        ({}, PUT_BACK_AFTER_MS + 1, 0, 2, Verdict.CHECK_AND_PUT_BACK),
        ({}, 60_000, 0, 247, Verdict.GIVE_UP),
        ({}, 72 * 3_600_000 + 1, 0, 0, Verdict.GIVE_UP),
        (
            {"TRAN_PREPARED_QUEUE_OFFSET": "1", "CHECK_IMMUNITY_TIME_IN_SECONDS": "3600"},
            0,
            3_600_001,
            0,
            Verdict.CHECK,
        ),
        (
            {"TRAN_PREPARED_QUEUE_OFFSET": "1", "CHECK_IMMUNITY_TIME_IN_SECONDS": "3600"},
            0,
            -1,
            0,
            Verdict.CHECK,
        ),
        (
            {"TRAN_PREPARED_QUEUE_OFFSET": "1", "CHECK_IMMUNITY_TIME_IN_SECONDS": "9" * 18},
            0,
            72 * 3_600_000 + 1,
            0,
            Verdict.GIVE_UP,
        ),
    ],
)
def test_what_a_check_does(
    properties: dict[str, str], age_ms: int, born_ms: int, here: int, expected: Verdict
) -> None:
    waiting = record(properties, age_ms=age_ms, born_ms=born_ms)
    assert half.verdict(waiting, here, 247, NOW, RULES) is expected


def test_a_message_from_a_clock_that_was_ahead_is_checked_in_time() -> None:
    ahead = record(age_ms=-100_000)
    assert half.verdict(ahead, 0, 247, NOW, RULES, known_ms=6_000) is Verdict.WAIT
    assert half.verdict(ahead, 0, 247, NOW, RULES, known_ms=6_001) is Verdict.CHECK


def test_a_clock_that_was_just_set_ahead_gives_nothing_up() -> None:
    ahead_ms = 10 * RULES.reserved_ms
    rules = replace(RULES, doubted_ms=ahead_ms)
    copy = {"TRAN_PREPARED_QUEUE_OFFSET": "1"}
    for waiting in (record(age_ms=ahead_ms + 60_000), record(copy, age_ms=0, born_ms=ahead_ms + 60_000)):
        assert half.verdict(waiting, 0, 247, NOW, RULES) is Verdict.GIVE_UP
        assert half.verdict(waiting, 0, 247, NOW, rules) in (Verdict.CHECK, Verdict.CHECK_AND_PUT_BACK)
        assert half.verdict(waiting, 15, 247, NOW, rules) is Verdict.GIVE_UP
    old = record(age_ms=ahead_ms + RULES.reserved_ms + 1)
    assert half.verdict(old, 0, 247, NOW, rules) is Verdict.GIVE_UP


def test_more_checks_than_a_byte_counts_are_counted_by_a_copy() -> None:
    many = CheckRules(timeout_ms=1, check_max=1_000_000, reserved_ms=RULES.reserved_ms)
    waiting = record(age_ms=60_000)
    assert half.verdict(waiting, 247, 247, NOW, many) is Verdict.CHECK_AND_PUT_BACK
    assert decode_properties(half.to_half_again(waiting, 248).properties)["TRANSACTION_CHECK_TIMES"] == "248"


def test_rules_are_the_configurations() -> None:
    assert CheckRules.of(BrokerConfig(), 72, 0) == RULES


def test_a_copy_names_the_first_message() -> None:
    first = record(age_ms=1)
    copy = half.to_half_again(first, 3)
    assert half.first_copy(first) is None
    stored = decode_record(encode_record(copy, queue_offset=20, physical_offset=5_000, store_timestamp=NOW))
    assert half.first_copy(stored) == 9 and half.checks_of(stored, 2) == 5
    third = half.to_half_again(stored, 4)
    assert decode_properties(third.properties)["TRAN_PREPARED_QUEUE_OFFSET"] == "9"


@pytest.mark.parametrize("text", ["9", "10", "-1", "x", "9" * 18, "9" * 40])
def test_an_offset_that_is_not_before_the_copy_is_none(text: str) -> None:
    assert half.first_copy(record({"TRAN_PREPARED_QUEUE_OFFSET": text})) is None


def test_a_message_that_was_given_up_begins_again() -> None:
    copy = half.to_half_again(record(), 3)
    stored = decode_record(encode_record(copy, queue_offset=20, physical_offset=5_000, store_timestamp=NOW))
    given_up = half.to_given_up(stored, 15)
    assert (given_up.topic, given_up.queue_id) == ("TRANS_CHECK_MAX_TIME_TOPIC", 0)
    assert decode_properties(given_up.properties)["TRANSACTION_CHECK_TIMES"] == "15"
    resumed = decode_properties(half.to_resumed(stored).properties)
    assert resumed["TRANSACTION_CHECK_TIMES"] == "0" and "TRAN_PREPARED_QUEUE_OFFSET" not in resumed


def test_the_producer_gets_the_record_in_its_topic_at_the_half_offsets() -> None:
    waiting = record(age_ms=5)
    body = half.check_body(waiting, ("T", 3), 2, queue_offset=30, physical_offset=7_000)
    asked = decode_record(body)
    assert (asked.topic, asked.queue_id, asked.queue_offset, asked.physical_offset) == ("T", 3, 30, 7_000)
    assert (asked.body, asked.store_timestamp) == (b"b", NOW - 5)
    assert asked.properties["TRANSACTION_CHECK_TIMES"] == "2" and asked.properties["UNIQ_KEY"] == "U"


def test_properties_without_room_are_kept_as_they_are() -> None:
    full = record({"fill": ""})
    full.properties["fill"] = "x" * (32_767 - len(encode_properties(full.properties)) - 6)
    for made in (half.to_half_again(full, 3), half.to_given_up(full, 15), half.to_resumed(full)):
        assert decode_properties(made.properties) == full.properties
    asked = decode_record(half.check_body(full, ("T", 3), 2, queue_offset=1, physical_offset=2))
    assert asked.properties == full.properties


def test_a_copy_of_each_half_message_names_the_first_one() -> None:
    accepted = 0
    for length in range(32_500, 32_767):
        properties = {"TRAN_MSG": "true", "UNIQ_KEY": "U", "fill": "x" * length}
        try:
            stored = half.to_half(message(properties), properties)
        except MessageFormatError:
            continue
        accepted += 1
        data = encode_record(stored, queue_offset=9, physical_offset=1_000, store_timestamp=NOW)
        again = half.to_half_again(decode_record(data, inflate=False), 200)
        copy = encode_record(again, queue_offset=10, physical_offset=99_000, store_timestamp=NOW)
        assert half.first_copy(decode_record(copy, inflate=False)) == 9
    assert accepted > 0


@pytest.mark.parametrize(
    ("text", "late_ms", "refused"),
    [
        ("10", 10_000, False),
        ("10", 10_001, True),
        ("0", 6_000, False),
        ("0", 6_001, True),
        ("-9", 6_001, True),
        ("x", 6_001, True),
        ("9" * 18, 1 << 40, False),
        ("", 1 << 40, False),
    ],
)
def test_when_only_the_answer_to_a_check_ends_a_transaction(text: str, late_ms: int, refused: bool) -> None:
    waiting = record({"CHECK_IMMUNITY_TIME_IN_SECONDS": text})
    assert half.ends_too_late(waiting, NOW + late_ms, 6_000) is refused


@pytest.mark.parametrize(
    ("body", "offsets"),
    [
        (b"", []),
        (b"7", [7]),
        (b"1,2,30,", [1, 2, 30]),
        (b",,4,", [4]),
        (b"x,-1,5, 6,\xff,1e3", [5]),
        (b"9" * 30, []),
    ],
)
def test_bodies_of_op_messages(body: bytes, offsets: list[int]) -> None:
    assert half.offsets_of(body) == offsets
    assert half.offsets_of(half.op_body(offsets)) == offsets


def batch_record(keys: list[str], **properties: str) -> MessageExt:
    """A half message that is a batch of messages with these unique keys."""
    body = encode_batch(
        BatchItem(body=key.encode(), properties=encode_properties({"UNIQ_KEY": key})) for key in keys
    )
    values = {"UNIQ_KEY": keys[0], "__TRAN_BATCH": str(len(keys)), **properties}
    values |= {"TRAN_MSG": "true", "REAL_TOPIC": "T", "REAL_QID": "3"}
    stored = StoredMessage(
        topic="RMQ_SYS_TRANS_HALF_TOPIC", queue_id=0, body=body, properties=encode_properties(values)
    )
    return decode_record(encode_record(stored, queue_offset=9, physical_offset=1_000, store_timestamp=NOW))


def half_of(rows: list[bytes], **properties: str) -> tuple[StoredMessage, dict[str, str]]:
    """A batch of messages with these encoded properties, as a sender prepares it, and its properties."""
    body = encode_batch(BatchItem(body=b"%d" % at, properties=row) for at, row in enumerate(rows))
    values = {"UNIQ_KEY": f"{1:08d}", "__TRAN_BATCH": str(len(rows)), **properties}
    return StoredMessage(topic="T", queue_id=3, body=body, properties=encode_properties(values)), values


def row(at: int, *, before: str = "", after: str = "") -> bytes:
    return f"{before}UNIQ_KEY\1{at:08d}\2{after}".encode()


@pytest.mark.parametrize("count", [3, 400])
def test_a_batch_whose_messages_have_unique_keys_becomes_a_half_message(count: int) -> None:
    equal = [row(at, before="TAGS\1a\2", after="WAIT\1true\2") for at in range(1, count + 1)]
    differing = [row(at, before=f"KEYS\1{at}\2") for at in range(1, count + 1)]
    for rows in (equal, differing):
        assert half.to_half(*half_of(rows)).topic == "RMQ_SYS_TRANS_HALF_TOPIC"


@pytest.mark.parametrize("count", [3, 400])
@pytest.mark.parametrize(
    "wrong",
    [b"TAGS\1a\2", b"UNIQ_KEY\1\2", row(1).replace(b"0001", b"00\xff1"), row(1).replace(b"UNIQ", b"UNIX")],
)
def test_a_batch_with_a_message_without_a_unique_key_is_refused(count: int, wrong: bytes) -> None:
    rows = [row(at) for at in range(1, count + 1)]
    for at in (1, count - 1):
        with pytest.raises(MessageFormatError, match="not each message of the batch has a unique key"):
            half.to_half(*half_of([*rows[:at], wrong, *rows[at + 1 :]]))


@pytest.mark.parametrize("count", [3, 400])
def test_a_batch_that_claims_another_number_or_key_is_refused(count: int) -> None:
    rows = [row(at) for at in range(1, count + 1)]
    with pytest.raises(MessageFormatError, match=f"has {count} messages and claims another number"):
        half.to_half(*half_of(rows, __TRAN_BATCH=str(count + 1)))
    with pytest.raises(MessageFormatError, match="does not have the unique key of its first message"):
        half.to_half(*half_of(rows[::-1]))


def test_a_check_of_a_batch_has_its_properties_and_no_body() -> None:
    asked = decode_record(
        half.check_body(batch_record(["a", "b"]), ("T", 3), 2, queue_offset=9, physical_offset=1_000)
    )
    assert asked.body == b"" and asked.topic == "T"
    assert asked.properties["UNIQ_KEY"] == "a" and asked.properties["__TRAN_BATCH"] == "2"


@pytest.mark.parametrize("delivered", [0, 1, 2])
def test_a_committed_batch_is_what_is_left_of_it(delivered: int) -> None:
    stored, properties = half.to_committed(batch_record(["a", "b", "c"]), ("T", 3), delivered)
    assert stored.batch and properties == {}
    assert [item.body for item in decode_batch(stored.body)] == [b"a", b"b", b"c"][delivered:]
    assert stored.sys_flag == 0x8 and stored.prepared_transaction_offset == 1_000


def test_the_rows_of_a_batch_are_counted_in_their_order() -> None:
    rows = DeliveredRows(batch_record(["a", "b", "c"]))
    for key, count in (("b", 0), ("a", 1), ("a", 1), ("c", 1), ("b", 2), ("c", 3), ("c", 3)):
        rows.read(key)
        assert rows.count == count
    assert rows.whole
