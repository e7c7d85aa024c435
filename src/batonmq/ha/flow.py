"""How fast one slave is sent to: `haFlowControlEnable` and `maxHaTransferByteInSecond`, without I/O."""

from __future__ import annotations

BURST_S = 0.1
"""What may be sent at once after silence, as a time at the full rate."""
PIECE_BYTES = 4096
"""Less than this is not worth a frame: wait until as much may be sent."""


class FlowControl:
    """A bucket that fills at a steady rate. RocketMQ counts whole seconds, and sends each one's bytes at its
    begin; the rate over a second is the same."""

    __slots__ = ("_filled_ms", "_level", "_most", "_per_ms")

    def __init__(self, bytes_per_s: int, now_ms: int) -> None:
        """`bytes_per_s` is above 0; times are monotonic, in ms."""
        self._per_ms = bytes_per_s / 1000
        self._most = max(bytes_per_s * BURST_S, PIECE_BYTES)
        self._level = self._most
        self._filled_ms = now_ms

    def allowance(self, now_ms: int) -> int:
        """Bytes that may be sent now; 0 or at least `PIECE_BYTES`."""
        self._level = min(self._most, self._level + (now_ms - self._filled_ms) * self._per_ms)
        self._filled_ms = now_ms
        return int(self._level) if self._level >= PIECE_BYTES else 0

    def sent(self, size: int) -> None:
        """`size` bytes went out."""
        self._level -= size

    def wait_ms(self) -> int:
        """After an `allowance` of 0: when to ask again."""
        return max(1, round((PIECE_BYTES - self._level) / self._per_ms))
