"""Java's hash code of a text: of tags in consume queue units, of keys in the index and of sharding keys."""

from __future__ import annotations

from functools import lru_cache

_SHORT = 64
"""Characters of texts whose hash codes are remembered in great number: tags and topics in use."""
_LONG = 32_767
"""Characters of texts whose hash codes are remembered at all."""


def java_hash(text: str) -> int:
    """`String.hashCode` of Java: over UTF-16 units, 32 bits, signed."""
    size = len(text)
    if size <= _SHORT:
        return _short_hash(text)
    return _long_hash(text) if size <= _LONG else _hash(text)


def _hash(text: str) -> int:
    value = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(units), 2):
        value = (31 * value + (units[at] << 8 | units[at + 1])) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


# Clients choose the texts: what is remembered must not take all memory.
_short_hash = lru_cache(maxsize=65_536)(_hash)
_long_hash = lru_cache(maxsize=64)(_hash)
