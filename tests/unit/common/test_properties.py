"""Properties files: what Java reads in them, and what is written back into one."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from batonmq.common.config import ConfigError, parse_properties
from batonmq.common.properties import with_changes


@pytest.mark.parametrize(
    ("text", "changes", "result"),
    [
        ("", {"a": "1"}, "a=1\n"),
        ("a=0\nb=2", {"a": "1"}, "a=1\nb=2\n"),
        ("# a=5\n a = 0\n\n", {"a": "1", "z": "="}, "# a=5\na=1\nz==\n"),
        ("a=0\\\n  1\nb=\\\na=7\n", {"a": "1"}, "a=1\nb=\\\na=7\n"),
        ("a=0\na : 5\nb=2\n", {"a": "1"}, "a=1\nb=2\n"),
        ("\\u0061=0\na\\:b=3\n", {"a": "1", "a:b": "4"}, "a=1\na\\:b=4\n"),
        ("\\uzz=0\n", {"a": "1"}, "\\uzz=0\na=1\n"),
        ("listenPort=1\n", {"brokerName": "x\nlistenPort=2"}, "listenPort=1\nbrokerName=x\\nlistenPort=2\n"),
    ],
)
def test_with_changes(text: str, changes: dict[str, str], result: str) -> None:
    assert with_changes(text, changes) == result


def test_escapes_beyond_16_bits_are_two_and_half_of_one_is_none() -> None:
    assert parse_properties("a=\\ud83d\\ude00\n") == {"a": "\U0001f600"}
    with pytest.raises(ConfigError, match="half a character"):
        parse_properties("a=\\ud83d:1\n")


words = st.text(alphabet="ab=:#! \\\t\n\r\f\u2028é", min_size=1, max_size=6)
values = st.text(alphabet="ab=:#! \\\t\n\r\f\u2028é", max_size=8)
files = st.text(alphabet="ab=:# \\\n\r", max_size=30)


@given(files, st.dictionaries(words, values, max_size=3))
@example("\\:", {"\\:": ""})
def test_what_is_written_is_what_is_read(text: str, changes: dict[str, str]) -> None:
    """And nothing else changes: no value can set another key, or swallow the next line."""
    try:
        before = parse_properties(text)
    except ConfigError:
        return
    assert parse_properties(with_changes(text, changes)) == before | changes
