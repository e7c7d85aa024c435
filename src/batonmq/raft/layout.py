"""The structs in Raft's files (`storage.py`), written as msgpack arrays."""

from __future__ import annotations

import msgspec

from batonmq.raft.messages import Entry, Snapshot


class SegmentHead(msgspec.Struct, array_like=True):
    """The state at the moment the segment was begun; makes older segments dispensable."""

    group: str
    node: str
    term: int
    voted_for: str | None
    commit: int
    last_index: int
    last_term: int


class Frame(msgspec.Struct, array_like=True):
    term: int
    voted_for: str | None
    commit: int
    reset: tuple[int, int] | None
    """(index, term) of a snapshot that replaces the whole log before ``entries``."""
    first_index: int
    entries: list[Entry]


encode = msgspec.msgpack.Encoder().encode
decode_head = msgspec.msgpack.Decoder(SegmentHead).decode
decode_frame = msgspec.msgpack.Decoder(Frame).decode
decode_snapshot = msgspec.msgpack.Decoder(Snapshot).decode
