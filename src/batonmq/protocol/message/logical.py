"""Records of a physical queue as records of the logical queue that it is a part of (static topics)."""

from __future__ import annotations

import struct

from batonmq.protocol.buffers import Buffer
from batonmq.protocol.message.errors import MessageFormatError
from batonmq.protocol.message.layout import POSITIONS
from batonmq.protocol.message.record import scan_frames

_ID = struct.Struct(">i")
_OFFSET = struct.Struct(">q")


def in_logical_queue(records: Buffer, queue_id: int, offset_delta: int) -> memoryview:
    """The records of a pull's answer with the id and the offsets of the logical queue.

    Raises `MessageFormatError` for an offset that is none.
    """
    moved = memoryview(bytearray(records))
    for at in scan_frames(moved)[:-1]:
        place = at + POSITIONS["queue_offset"]
        (offset,) = _OFFSET.unpack_from(moved, place)
        if not 0 <= offset + offset_delta < 1 << 63:
            raise MessageFormatError(f"offset {offset} cannot be moved by {offset_delta}")
        _ID.pack_into(moved, at + POSITIONS["queue_id"], queue_id)
        _OFFSET.pack_into(moved, place, offset + offset_delta)
    return moved
