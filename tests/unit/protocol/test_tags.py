"""Tag expressions and hash codes."""

from __future__ import annotations

import pytest

from batonmq.protocol.tags import java_hash, matches, tag_subscription

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
