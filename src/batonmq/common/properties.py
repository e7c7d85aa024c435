"""Java's properties files: ``key=value``, ``key: value`` or ``key value`` lines, ``#`` and ``!`` comments.

Backslash escapes and continued lines have the meaning of `java.util.Properties`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

_LINE_END: Final = re.compile(r"\r\n|\r|\n")
_WORD: Final = re.compile(r"[A-Za-z][\w.]*")
_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


@dataclass(frozen=True, slots=True)
class PropertyLine:
    """One key and its value, without escapes."""

    number: int
    """Number of its first line, from 1."""
    key: str
    value: str
    plain: bool
    """A word, then ``=`` or ``:``. The other forms are valid too, but rare."""


def property_lines(text: str) -> Iterator[PropertyLine]:
    """Every key of the text in order. Raises `ValueError` naming the line."""
    for number, _, logical in _logical_lines(text):
        if not logical:
            continue
        key, value, separated = _split(logical)
        plain = separated and _WORD.fullmatch(key) is not None
        try:
            yield PropertyLine(number, _unescape(key), _unescape(value), plain)
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None


def _split(logical: str) -> tuple[str, str, bool]:
    """Key and value as written, and whether ``=`` or ``:`` is between them."""
    position, escaped = 0, False
    while position < len(logical):
        char = logical[position]
        if not escaped and char in "=: \t\f":
            break
        escaped = char == "\\" and not escaped
        position += 1
    key, rest = logical[:position], logical[position:].lstrip(" \t\f")
    separated = rest[:1] in ("=", ":")
    return key, rest[1:].lstrip(" \t\f") if separated else rest, separated


def _logical_lines(text: str) -> Iterator[tuple[int, list[str], str]]:
    """Number of the first line, the lines as they are, and the joined text: empty for a comment."""
    lines = enumerate(_LINE_END.split(text), 1)
    for number, line in lines:
        whole, logical = [line], line.lstrip(" \t\f")
        if logical[:1] in ("#", "!"):
            logical = ""
        while (len(logical) - len(logical.rstrip("\\"))) % 2:
            whole.append(next(lines, (0, ""))[1])
            logical = logical[:-1] + whole[-1].lstrip(" \t\f")
        yield number, whole, logical


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    out: list[str] = []
    chars = iter(text)
    for char in chars:
        if char != "\\":
            out.append(char)
            continue
        code = next(chars, "")
        if code == "u":
            digits = "".join(next(chars, "") for _ in range(4))
            try:
                out.append(chr(int(digits, 16)))
            except ValueError:
                raise ValueError(f"malformed \\u escape: \\u{digits}") from None
        else:
            out.append(_ESCAPES.get(code, code))
    said = "".join(out)
    try:
        # Java writes characters beyond 16 bits as two escapes.
        return said.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        raise ValueError(f"\\u escapes of half a character: {text}") from None


def _key(logical: str) -> str | None:
    """The key that a line sets, or None."""
    if not logical:
        return None
    try:
        return _unescape(_split(logical)[0])
    except ValueError:
        return None  # not a key: loading the file reports this line


def with_changes(text: str, changes: Mapping[str, str], aliases: Mapping[str, str] = {}) -> str:
    """A properties file with some keys changed in place and new ones at its end.

    `aliases`: other spellings that the file may contain -> keys of `changes`.
    """
    left = dict(changes)
    lines: list[str] = []
    for _, whole, logical in _logical_lines(text.rstrip("\r\n")):
        key = _key(logical)
        key = aliases.get(key, key) if key is not None else None
        if key is not None and key in changes:
            if key in left:  # a second line with this key would override it
                lines.append(_line(key, left.pop(key)))
        elif text:
            lines.extend(whole)
    lines.extend(_line(key, value) for key, value in left.items())
    return "".join(f"{line}\n" for line in lines)


_ESCAPED: Final = {char: "\\" + code for code, char in _ESCAPES.items()}
_IN_KEY: Final = re.compile(r"[=:#!\\ \t\n\r\f]")
_IN_VALUE: Final = re.compile(r"^ |[\\\t\n\r\f]")


def _line(key: str, value: str) -> str:
    """One line for any key and value: they may come from a request, and must not set other keys."""

    def escaped(found: re.Match[str]) -> str:
        return _ESCAPED.get(found[0], "\\" + found[0])

    return f"{_IN_KEY.sub(escaped, key)}={_IN_VALUE.sub(escaped, value)}"
