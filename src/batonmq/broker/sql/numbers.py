"""Numbers in the text of a property, as Java reads and compares them.

Source: the documentation of Java's `Integer.valueOf`, `Long.valueOf`, `Double.valueOf`, `Double.compareTo`.
"""

from __future__ import annotations

import math
import re
from typing import Final

from batonmq.broker.sql.errors import EvaluationError

INT_MAX: Final = (1 << 31) - 1
LONG_MAX: Final = (1 << 63) - 1
MAX_NUMBER: Final = 128
"""Bytes of a number; longer text is none here. Java reads any number of digits."""
_INTEGER: Final = re.compile(r"[+-]?\d+")
_DOUBLE: Final = re.compile(
    r"[+-]?(?:NaN|Infinity|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fFdD]?"
    r"|0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?[0-9]+[fFdD]?)"
)
_SPACE: Final = "".join(map(chr, range(0x21)))
"""What `String.trim` removes."""


def parse_integer(text: bytes, most: int) -> int:
    """`Integer.valueOf` or `Long.valueOf` of UTF-8 text: a number from ``-most - 1`` to `most`.

    Raises:
        EvaluationError: it is not such a number.
    """
    if len(text) < 10 and text.isdigit():
        return int(text)
    if len(text) <= MAX_NUMBER:
        read = str(text, "utf-8", "replace")
        # Digits of all scripts count for Java, but none beyond the first 65 536 characters.
        if _INTEGER.fullmatch(read) and max(read) < "\U00010000":
            value = int(read)
            if -most - 1 <= value <= most:
                return value
    raise EvaluationError("not an integer")


def parse_double(text: bytes) -> float:
    """`Double.valueOf` of UTF-8 text.

    Raises:
        EvaluationError: it is not a number.
    """
    read = str(text, "utf-8", "replace").strip(_SPACE) if len(text) <= MAX_NUMBER else ""
    if not _DOUBLE.fullmatch(read):
        raise EvaluationError("not a number")
    if read[-1] == "N":
        return math.nan
    if read[-1] == "y":
        return -math.inf if read[0] == "-" else math.inf
    if "x" in read or "X" in read:
        return _hexadecimal(read)
    return float(read.rstrip("fFdD"))


def _hexadecimal(text: str) -> float:
    body, _, exponent = text.lower().partition("p")
    exponent = exponent.rstrip("fd")
    if not body.lstrip("+-")[2:].strip("0."):
        return -0.0 if text[0] == "-" else 0.0
    # An exponent beyond this is beyond every double, whatever the digits before it.
    digits = exponent.lstrip("+-").lstrip("0") or "0"
    bounded = "-" * (exponent[0] == "-") + (digits if len(digits) < 7 else "999999")
    try:
        return float.fromhex(f"{body}p{bounded}")
    except OverflowError:
        return -math.inf if text[0] == "-" else math.inf


def parse_boolean(text: bytes) -> bool:
    """`Boolean.valueOf`: anything but ``true``, in any case, is false."""
    return text.lower() == b"true"


def compare_doubles(left: float, right: float) -> int:
    """`Double.compareTo`: below 0, 0 or above 0; NaN is above everything, and -0.0 below 0.0."""
    if left < right:
        return -1
    if left > right:
        return 1
    return _rank(left) - _rank(right)


def _rank(value: float) -> int:
    """Place among the doubles that ``<`` does not tell apart."""
    if value == 0.0:
        return 0 if math.copysign(1.0, value) < 0 else 1
    return 2 if math.isnan(value) else 1
