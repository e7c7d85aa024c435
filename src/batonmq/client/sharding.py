"""Chooses the queue for the messages of one sharding key. No I/O.

SipHash-2-4 of the key, as a Java long, modulo the number of queues: what RocketMQ's gRPC clients do with
message groups (`PublishingLoadBalancer.takeMessageQueueByMessageGroup`, with Guava's default key).
"""

from __future__ import annotations

from collections.abc import Sequence

from batonmq.protocol.bodies.common import MessageQueue

_MASK = 2**64 - 1
_K0 = 0x0706050403020100
_K1 = 0x0F0E0D0C0B0A0908


def queue_of_key(queues: Sequence[MessageQueue], key: str) -> MessageQueue:
    """The queue of a key; ``queues`` are taken in their order by broker name and queue id, and not empty."""
    ordered = sorted(queues)
    value = siphash24(key.encode())
    signed = value - (1 << 64) if value >= 1 << 63 else value
    return ordered[signed % len(ordered)]


def siphash24(data: bytes, k0: int = _K0, k1: int = _K1) -> int:
    """SipHash-2-4, unsigned."""
    state = [
        k0 ^ 0x736F6D6570736575,
        k1 ^ 0x646F72616E646F6D,
        k0 ^ 0x6C7967656E657261,
        k1 ^ 0x7465646279746573,
    ]
    whole = len(data) - len(data) % 8
    words = [int.from_bytes(data[at : at + 8], "little") for at in range(0, whole, 8)]
    words.append(int.from_bytes(data[whole:], "little") | (len(data) & 0xFF) << 56)
    for word in words:
        state[3] ^= word
        _rounds(state, 2)
        state[0] ^= word
    state[2] ^= 0xFF
    _rounds(state, 4)
    return state[0] ^ state[1] ^ state[2] ^ state[3]


def _rounds(state: list[int], count: int) -> None:
    v0, v1, v2, v3 = state
    for _ in range(count):
        v0 = (v0 + v1) & _MASK
        v1 = _rotated(v1, 13) ^ v0
        v0 = _rotated(v0, 32)
        v2 = (v2 + v3) & _MASK
        v3 = _rotated(v3, 16) ^ v2
        v0 = (v0 + v3) & _MASK
        v3 = _rotated(v3, 21) ^ v0
        v2 = (v2 + v1) & _MASK
        v1 = _rotated(v1, 17) ^ v2
        v2 = _rotated(v2, 32)
    state[:] = v0, v1, v2, v3


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> (64 - bits)) & _MASK
