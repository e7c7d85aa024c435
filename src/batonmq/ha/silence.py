"""How long the other end of a replication link has been silent, and whether that is unusual for it."""

from __future__ import annotations

from typing import Final

BEAT_WITHIN_MS: Final = 1_000
"""An end that says so soon that nothing is new sends heartbeats often (RocketMQ: every 5 s)."""
USUAL_GAP_MS: Final = 400
"""Gaps up to this need no allowance: a heartbeat is due after 200 ms, and sent at the next tick."""
WINDOW_MS: Final = 15_000
"""Gaps are remembered for one to two of these windows: long enough for a machine that is starved, which is so
all the time, and not so long that a fault after another one, such as packet loss, is noticed late."""


class LinkSilence:
    """One end's view of the other. Times are ms of `RunningTime`, so its own pauses do not count.

    An end that was late lately is given longer: twice its longest gap of the last half minute is added.
    """

    def __init__(self, now_ms: int) -> None:
        self._read_ms = now_ms
        self._window_ms = now_ms
        self._gap_ms = self._former_gap_ms = 0
        self.beats = False
        """Whether the other end sends heartbeats so often that its silence says something."""

    def received(self, now_ms: int, *, heartbeat: bool) -> None:
        """Something arrived; `heartbeat`: nothing but a sign of life."""
        gap_ms = now_ms - self._read_ms
        self._read_ms = now_ms
        if heartbeat and gap_ms < BEAT_WITHIN_MS:
            self.beats = True
        if gap_ms > USUAL_GAP_MS:
            self._roll(now_ms)
            self._gap_ms = max(self._gap_ms, gap_ms)

    def _roll(self, now_ms: int) -> None:
        """Forget old gaps."""
        windows = (now_ms - self._window_ms) // WINDOW_MS
        if windows:
            self._former_gap_ms = self._gap_ms if windows == 1 else 0
            self._gap_ms = 0
            self._window_ms += windows * WINDOW_MS

    def excuse(self, now_ms: int) -> None:
        """What came until now, or did not, says nothing about how late the other end is: this end chose not
        to read, or they shook hands, which takes seconds where packets are lost."""
        self._read_ms = now_ms

    def silent_ms(self, now_ms: int) -> int:
        """Since something arrived last."""
        return now_ms - self._read_ms

    def unusual(self, now_ms: int, least_ms: int, most_ms: int) -> bool:
        """Whether it has been silent for `least_ms`, or as much longer as its late gaps ask for, at most
        `most_ms`."""
        silent_ms = now_ms - self._read_ms
        if silent_ms <= least_ms:
            return False
        if silent_ms > most_ms:
            return True
        self._roll(now_ms)
        late_ms = max(self._gap_ms, self._former_gap_ms, USUAL_GAP_MS) - USUAL_GAP_MS
        return silent_ms > least_ms + 2 * late_ms
