"""Body compression as RocketMQ's clients do it: zlib, LZ4 *frames* and zstd, chosen by bits of the sys flag.

A body is compressed by the sender and inflated by the consumer; brokers store it as it came. Output is
bounded, since any client may have sent the bytes.
"""

from __future__ import annotations

import zlib
from enum import IntEnum

import lz4.frame
import zstandard

from batonmq.protocol.codes import MessageSysFlag

MAX_INFLATED_BYTES = 256 << 20
"""Default bound of an inflated body, in bytes."""


class CompressionType(IntEnum):
    """Algorithm; the value is what the sys flag holds in bits 8 to 10."""

    LZ4 = 1
    ZSTD = 2
    ZLIB = 3

    @property
    def sys_flag(self) -> int:
        """The bits to set in a message's sys flag, the compressed bit included."""
        return MessageSysFlag.COMPRESSED | (self << 8)


class CompressionError(ValueError):
    """A body that does not inflate: damaged, of an unknown algorithm, or too large."""


def compression_type(sys_flag: int) -> CompressionType:
    """Algorithm named by `sys_flag`; raises `CompressionError` for one that RocketMQ does not define."""
    value = (sys_flag & MessageSysFlag.COMPRESSION_MASK) >> 8
    if value == 0:
        return CompressionType.ZLIB
    try:
        return CompressionType(value)
    except ValueError:
        raise CompressionError(f"unknown compression type {value} in sys flag {sys_flag:#x}") from None


def compress(body: bytes | memoryview, kind: CompressionType, level: int = 5) -> bytes:
    """Compress `body`. `level` counts for zlib and zstd (RocketMQ's default is 5); LZ4 has none there."""
    if kind is CompressionType.ZLIB:
        return zlib.compress(body, level)
    if kind is CompressionType.LZ4:
        compressed: bytes = lz4.frame.compress(body)
        return compressed
    return zstandard.ZstdCompressor(level=level).compress(body)


def decompress(body: bytes | memoryview, sys_flag: int, *, limit: int = MAX_INFLATED_BYTES) -> bytes:
    """Inflate `body` by the algorithm in `sys_flag`.

    Raises `CompressionError` when it is damaged, cut short, or inflates to more than `limit` bytes.
    """
    kind = compression_type(sys_flag)
    try:
        if kind is CompressionType.ZLIB:
            inflater = zlib.decompressobj()
            data = inflater.decompress(body, limit + 1)
            ended = inflater.eof
        elif kind is CompressionType.LZ4:
            frame = lz4.frame.LZ4FrameDecompressor()
            data = frame.decompress(body, max_length=limit + 1)
            ended = frame.eof
        else:
            data, ended = _decompress_zstd(body, limit)
    except (zlib.error, RuntimeError, zstandard.ZstdError) as error:
        raise CompressionError(f"{kind.name} body does not inflate: {error}") from error
    if len(data) > limit:
        raise CompressionError(f"{kind.name} body inflates to more than {limit} bytes")
    if not ended:
        raise CompressionError(f"{kind.name} body is cut short")
    return data


def _decompress_zstd(body: bytes | memoryview, limit: int) -> tuple[bytes, bool]:
    """Output (somewhat past `limit` at most) and whether the frame ended."""
    inflater = zstandard.ZstdDecompressor().decompressobj()
    view, parts, size, at = memoryview(body), [], 0, 0
    # Small input steps bound the output: each 4 bytes of input may stand for a block of 128 KiB.
    while at < len(view) and size <= limit and not inflater.eof:
        parts.append(inflater.decompress(view[at : at + 1024]))
        size += len(parts[-1])
        at += 1024
    return b"".join(parts), inflater.eof
