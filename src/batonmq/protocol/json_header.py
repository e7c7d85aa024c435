"""The header of a JSON frame, as msgspec decodes it; `frame.py` makes a `Command` of it.

A module of its own because `frame.py` may be compiled: msgspec reads the types of a struct's fields when the
program runs, and a compiled class does not have them all.
"""

from __future__ import annotations

import msgspec


class JsonHeader(msgspec.Struct, gc=False):
    """Wire names. What is missing has the value that it has in RocketMQ."""

    code: int
    opaque: int = 0
    flag: int = 0
    version: int = 0
    language: str | int = "OTHER"
    remark: str | None = None
    extFields: msgspec.Raw = msgspec.Raw(b"null")
    """Left undecoded: few handlers want a dict."""
