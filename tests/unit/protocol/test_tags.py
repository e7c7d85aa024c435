"""Tag expressions and hash codes."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import pytest

from batonmq.protocol.java_hash import java_hash
from batonmq.protocol.tags import MAX_EXPRESSION, matches, tag_subscription
from batonmq.store.scan import tags_code

HASHES = [
    ("", 0),
    ("a", 97),
    ("TagA", 2598919),
    ("grün", 3185949),
    ("a much longer tag that overflows", -2142409375),
    ("😀", 1772899),
]


@pytest.mark.parametrize(("text", "expected"), HASHES)
def test_java_hash(text: str, expected: int) -> None:
    assert java_hash(text) == expected


TAGS = [("*", []), ("", []), (None, []), ("a", ["a"]), (" a||b || a ", ["a", "b"])]


@pytest.mark.parametrize(("expression", "tags"), TAGS)
def test_tag_expressions(expression: str | None, tags: list[str]) -> None:
    data = tag_subscription("t", expression, 5)
    assert data.tags_set == tags and data.code_set == [java_hash(tag) for tag in tags]
    assert matches(data, "a") and matches(data, "c") is (not tags) and matches(data, None) is (not tags)


def test_an_expression_without_a_tag() -> None:
    with pytest.raises(ValueError, match="names no tag"):
        tag_subscription("t", "||", 0)


def test_a_long_text_has_the_same_hash_code_however_it_is_remembered() -> None:
    for text in ("t" * 64, "t" * 65, "t" * 40_000):
        expected = 0
        for _ in text:
            expected = (31 * expected + ord("t")) & 0xFFFFFFFF
        expected -= (expected & 1 << 31) << 1
        assert java_hash(text) == java_hash(text) == expected


@pytest.mark.parametrize(
    "remember",
    [
        lambda text: java_hash(text),
        lambda text: tags_code(f"TAGS\x01{text}\x02".encode()),
        lambda text: tag_subscription("T", text, 1),
    ],
)
def test_long_texts_of_clients_do_not_fill_the_memory(remember: Callable[[str], object]) -> None:
    tracemalloc.start()
    try:
        for number in range(300):
            remember(f"{number}" + "x" * 3_000)
        assert tracemalloc.get_traced_memory()[0] < 400_000
    finally:
        tracemalloc.stop()


def test_an_expression_of_megabytes_is_not_read() -> None:
    assert tag_subscription("t", "a" * MAX_EXPRESSION, 0).tags_set
    with pytest.raises(ValueError, match="at most 65536"):
        tag_subscription("t", "a" * (MAX_EXPRESSION + 1), 0)
