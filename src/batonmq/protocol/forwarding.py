"""A request inside another one, and the answer inside the answer (FORWARD_TO_LEADER): each a whole frame."""

from __future__ import annotations

from batonmq.protocol.buffers import Buffer
from batonmq.protocol.errors import FrameError
from batonmq.protocol.frame import Command, FrameReader, encode

__all__ = ["decode_single", "encode"]


def decode_single(body: Buffer) -> Command:
    """The only frame in `body`. Raises `FrameError` if there is none, more than one, or a broken one."""
    reader = FrameReader()
    commands = reader.feed(bytes(body))
    if len(commands) != 1 or reader.held:
        raise FrameError(f"{len(commands)} whole frames in {len(body)} bytes, expected one")
    return commands[0]
