"""The tokens of an expression.

Source: `SelectorParser.jj` of RocketMQ's filter. A token is the longest text that fits; words in any case.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from batonmq.broker.sql.errors import SqlError

MAX_LENGTH: Final = 1 << 16
"""Characters of an expression; RocketMQ sets no limit. Reading one of this length takes some 30 ms."""
WORDS: Final = frozenset(
    {
        *("NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS"),
        *("CONTAINS", "STARTSWITH", "ENDSWITH"),
    }
)
END: Final = "end"
BROKEN: Final = "broken"
"""The last token of an expression with a character that begins none. Not an error yet: it may be in a comment
behind the end (``a = 1 -- it's``)."""
_TOKEN: Final = re.compile(
    r"""(?P<space>[ \t\n\r\f]+ | /\*[\s\S]*?\*/)
    | (?P<float>[0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)? | \.[0-9]+(?:[eE][+-]?[0-9]+)? | [0-9]+[eE][+-]?[0-9]+)
    | (?P<integer>[1-9][0-9]*[lL]? | 0(?![0-9]))
    | (?P<string>'[^']*(?:''[^']*)*')
    | (?P<name>[A-Za-z_$][A-Za-z0-9_$]*)
    | (?P<sign><> | <= | >= | [=<>(),+-])""",
    re.VERBOSE,
)
_LINE_END: Final = re.compile(r"[\n\r]")


class Token(NamedTuple):
    """`kind`: a word in upper case, a sign, ``float``, ``integer``, ``string``, ``name``, `END`, `BROKEN`."""

    kind: str
    text: str
    at: int
    """Position in the expression, from 0."""


def tokens_of(expression: str) -> list[Token]:
    """The tokens, with one of kind `END` or `BROKEN` behind them. Raises `SqlError` if they are too many."""
    if len(expression) > MAX_LENGTH:
        raise SqlError(f"the expression has {len(expression)} characters, at most {MAX_LENGTH} are allowed")
    tokens: list[Token] = []
    at, end = 0, len(expression)
    line_end = (
        -1
    )  # the first one at or behind `at`; sought once for each line, or `-----…` would take minutes
    while at < end:
        if expression.startswith("--", at):
            if line_end < at:
                line = _LINE_END.search(expression, at)
                line_end = line.start() if line else end
            if line_end < end:
                at = line_end
                continue
        found = _TOKEN.match(expression, at)
        if found is None:
            tokens.append(Token(BROKEN, expression[at], at))
            return tokens
        kind, text = str(found.lastgroup), found.group()
        if kind == "name" and text.upper() in WORDS:
            kind = text.upper()
        elif kind == "sign":
            kind = text
        if kind != "space":
            tokens.append(Token(kind, text, at))
        at = found.end()
    tokens.append(Token(END, "", end))
    return tokens
