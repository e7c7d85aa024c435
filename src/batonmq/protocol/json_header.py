"""The header of a JSON frame, as msgspec decodes it; `frame.py` makes a `Command` of it.

A separate module because `frame.py` may be compiled: msgspec reads the types of a struct's fields when the
program runs, and a compiled class does not have them all.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

LOOSE_BYTES: Final = 64 * 1024
"""Longer headers are read strictly only: all members of others become objects."""
_LAST_COMMA: Final = re.compile(rb",\s*(\}\s*)$")


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


def read_loosely(header: bytes) -> JsonHeader:
    """A header as fastjson reads it, for one that the decoder of `JsonHeader` refuses: numbers may be texts,
    null stands for what is missing, and a comma may follow the last member. Raises `msgspec.MsgspecError` or
    `UnicodeDecodeError`."""
    if len(header) > LOOSE_BYTES:
        raise msgspec.DecodeError(f"a header of {len(header)} bytes is read strictly")
    try:
        read = msgspec.json.decode(header, type=dict[str, Any])
    except msgspec.DecodeError:
        read = msgspec.json.decode(_LAST_COMMA.sub(rb"\1", header), type=dict[str, Any])
    members = {name: value for name, value in read.items() if value is not None}
    fields = members.pop("extFields", None)
    parsed = msgspec.convert(members, JsonHeader, strict=False)
    parsed.extFields = msgspec.Raw(msgspec.json.encode(fields))
    return parsed
