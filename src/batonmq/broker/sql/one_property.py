"""Expressions about one property: the answer depends on its value alone, so answers are kept.

Most filters name one property with few values. Looking up an answer takes a third of the time that evaluating
the expression takes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from batonmq.protocol.message.properties import find_value, property_start

MAX_ENCODED: Final = 1024
"""Beyond so many bytes properties are decoded before a lookup."""
KEPT: Final = 1024
"""Answers that are kept for an expression."""
KEPT_SIZE: Final = 64
"""Bytes of the longest value whose answer is kept."""


class OneProperty:
    """A filter that looks at one property: a function of a message's encoded properties, as other filters."""

    def __init__(self, name: str, decides: Callable[[bytes | None], bool]) -> None:
        """`decides`: the answer for a value, None if the property is missing."""
        self._name = name.encode()
        self.mark = property_start(name)
        self.rare = False
        self._decides = decides
        self._answers: dict[bytes | None, bool] = {}
        self._by_number: dict[int, bool] = {}

    def __call__(self, properties: bytes) -> bool:
        """Whether a message with these encoded properties passes."""
        if len(properties) <= MAX_ENCODED:
            return self._answer(find_value(properties, self.mark))
        return self._answer(decoded(properties).get(self._name))

    def _answer(self, value: bytes | None) -> bool:
        """Whether a message with this value passes."""
        answer = self._answers.get(value)
        if answer is None:
            answer = self._decides(value)
            if value is None or len(value) <= KEPT_SIZE:
                if len(self._answers) >= KEPT:
                    self._answers.clear()
                self._answers[value] = answer
        return answer

    def answer(self, number: int) -> bool:
        """As `_answer`, for a value of 1 to 8 bytes as a number, the first byte lowest; 0: it is missing."""
        answer = self._by_number.get(number)
        if answer is None:
            value = number.to_bytes(8, "little").rstrip(b"\0") if number else None
            answer = self._decides(value)
            if len(self._by_number) >= KEPT:
                self._by_number.clear()
            self._by_number[number] = answer
        return answer


def decoded(properties: bytes) -> dict[bytes, bytes]:
    """As `decode_properties`, without decoding the text."""
    found: dict[bytes, bytes] = {}
    for piece in properties.split(b"\2"):
        name, _, value = piece.partition(b"\1")
        if value and name:
            found[name] = value
    return found
