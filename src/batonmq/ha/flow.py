"""How fast a master sends to one slave, without I/O: `haFlowControlEnable` with `maxHaTransferByteInSecond`,
and how much may be under way to a slave that catches up."""

from __future__ import annotations

from typing import Final

BURST_S: Final = 0.1
"""What may be sent at once after a pause, as a time at the full rate."""
PIECE_BYTES: Final = 4096
"""Less than this is not worth a frame: wait until as much may be sent."""


class FlowControl:
    """A token bucket. RocketMQ counts whole seconds and sends the bytes of each at its beginning; the rate
    over a second is the same."""

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


LEAST_WINDOW: Final = 256 * 1024
"""Bytes; as much as one loop turn sends."""
FORGET_US: Final = 5_000_000
FORGET_ROUNDS: Final = 100
"""The shortest round trip is measured again when none was about as short for both of these: the line may have
become longer, or a disk slower."""
MEASURING_ROUNDS: Final = 8
"""With the least window: with more under way, a round trip is longer because of that."""


class Window:
    """How much may be sent to a slave that catches up before it has acknowledged what was sent before.

    A socket takes megabytes, and a slave that always finds more in it does not stop: where it shares
    processors with its master, producers wait behind it. So the slave gets twice what it acknowledges in the
    shortest recent round trip. That keeps a line of any length full, and the slave often has to wait for
    more. (The bandwidth-delay product, as in BBR: Cardwell et al., ACM Queue 14(5), 2016. As there, the
    shortest round trip is measured again from time to time, with little under way.)
    """

    __slots__ = ("_acked", "_end", "_found_us", "_measuring", "_sent_us", "_shortest_us", "size")

    def __init__(self) -> None:
        self.size = LEAST_WINDOW
        """Bytes."""
        self._shortest_us = 0
        """0: not known."""
        self._found_us = 0
        """When a round trip was last about that short."""
        self._measuring = MEASURING_ROUNDS
        self._end = -1
        """The round trip being measured ends when this offset is acknowledged; -1: none is measured."""
        self._sent_us = 0
        self._acked = 0

    def sent(self, end: int, acked: int, now_us: int) -> None:
        """Everything before `end` went out, when `acked` was acknowledged. Times are monotonic, in us."""
        if self._end < 0:
            self._end, self._acked, self._sent_us = end, acked, now_us

    def acked(self, offset: int, now_us: int) -> None:
        """The slave has everything before `offset`."""
        if self._end < 0 or offset < self._end:
            return
        self._end, took_us = -1, max(1, now_us - self._sent_us)
        shortest_us = self._shortest_us or took_us
        if 4 * took_us <= 5 * shortest_us:
            self._found_us = now_us
        elif now_us - self._found_us > max(FORGET_US, FORGET_ROUNDS * shortest_us):
            self._shortest_us, self.size, self._measuring = 0, LEAST_WINDOW, MEASURING_ROUNDS
            return
        self._shortest_us = min(shortest_us, took_us)
        if self._measuring:
            self._measuring -= 1
            return
        wanted = 2 * (offset - self._acked) * self._shortest_us // took_us
        # Up at once, as a line fills in a few round trips; down in small steps, as any of them may be slow.
        self.size = max(LEAST_WINDOW, wanted, self.size - self.size // 8)
