"""Light queues in the properties of a message: names, offsets, and what is not a light queue."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from batonmq.protocol.message.light import (
    gives_light_offsets,
    has_light_queues,
    light_names,
    light_offsets,
    names_error,
    offset_in,
    with_light_offsets,
    without_light_offsets,
)
from batonmq.protocol.message.properties import decode_properties, encode_properties

NAMES, OFFSETS = "INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET"
A, B = "%LMQ%a", "%LMQ%b"


@pytest.mark.parametrize(
    ("value", "names"),
    [
        (A, [A]),
        (f"{A},{B}", [A, B]),
        (f"{A},{B},,", [A, B]),
        (f",{A}", ["", A]),
        (",,", []),
        (" ", []),
    ],
)
def test_names_are_split_as_java_does(value: str, names: list[str]) -> None:
    assert light_names(encode_properties({"k": "v", NAMES: value})) == names


@pytest.mark.parametrize(
    ("topic", "names", "offsets", "found"),
    [
        ("T", A, "7", [(A, 7)]),
        ("T", f"{A},{B}", "7,0", [(A, 7), (B, 0)]),
        ("T", f"{A},{A}", "7,8", [(A, 7)]),
        ("T", f"{A},plain,%LMQ%x/y,{B}", "1,2,3,4", [(A, 1), (B, 4)]),
        ("T", f"{A},{B}", "7", []),
        ("T", f"{A},{B}", "x,-1", []),
        ("T", A, "99999999999999999999", []),
        ("T", A, "", []),
        ("T", "", "7", []),
        (A, f"{A},{B}", "1,2", [(B, 2)]),
        ("RMQ_SYS_TRANS_HALF_TOPIC", A, "7", [(A, 7)]),
        ("SCHEDULE_TOPIC_XXXX", A, "7", []),
        ("rmq_sys_wheel_timer", A, "7", []),
        ("%RETRY%g", A, "7", []),
        ("%DLQ%g", A, "7", []),
    ],
)
def test_offsets_of_a_record(topic: str, names: str, offsets: str, found: list[tuple[str, int]]) -> None:
    properties = {NAMES: names, OFFSETS: offsets}
    assert light_offsets(topic, f"{NAMES}\x01{names}\x02{OFFSETS}\x01{offsets}\x02".encode()) == found
    message = SimpleNamespace(topic=topic, queue_offset=5, properties=properties)
    assert offset_in(topic, message) == 5
    for name in {A, B} - {topic}:
        assert offset_in(name, message) == dict(found).get(name, -1)


def test_a_master_gives_no_offsets_to_half_messages() -> None:
    for topic in ("RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"):
        assert has_light_queues(topic) and not gives_light_offsets(topic)
    assert gives_light_offsets("T") and not gives_light_offsets("SCHEDULE_TOPIC_XXXX")


def test_offsets_are_added_and_removed() -> None:
    before = encode_properties({NAMES: f"{A},{B}", "k": "v"})
    given = with_light_offsets(before, [3, 12])
    assert decode_properties(given) == {NAMES: f"{A},{B}", "k": "v", OFFSETS: "3,12"}
    assert given.endswith(b"\x02") and without_light_offsets(given) == before
    assert with_light_offsets(before[:-1], [3, 12]) == given, "old clients leave out the last separator"
    assert without_light_offsets(before) == before


@pytest.mark.parametrize(
    ("name", "why"),
    [
        (A, None),
        ("%LMQ%" + "x" * 250, None),
        ("%LMQ%" + "x" * 251, "more than 255 bytes"),
        ("%LMQ%" + "ä" * 126, "more than 255 bytes"),
        ("", "does not begin"),
        ("%lmq%a", "does not begin"),
        ("%LMQ%", "no name behind %LMQ%"),
        ("%LMQ%a/b", "illegal character"),
        ("%LMQ%a\0", "illegal character"),
    ],
)
def test_which_names_are_refused(name: str, why: str | None) -> None:
    error = names_error("T", [A, name])
    assert error is None if why is None else error is not None and why in error
    assert names_error(A, [A]) is not None
