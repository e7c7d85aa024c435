"""Decides how much of the index is built at a time, and the pause before the next slice. No I/O."""

from __future__ import annotations

from typing import Final

LEAST_SLICE: Final = 100
MOST_SLICE: Final = 1000
"""Records indexed before the loop serves other work: as many as take about `SLICE_S`. A long slice takes a
third of the processor time a record; index pages that were written back to disk and are modified again make
it slow."""
SLICE_S: Final = 0.001
INDEX_DELAY_S: Final = 1.0
"""Delay before new messages are indexed."""
BUSY_PAUSES: Final = 10
IDLE_PAUSES: Final = 5
"""Indexing pauses this many times as long as it worked. So it takes at most a tenth of the processor while
the loop is busy; otherwise it catches up faster, before someone queries by key."""
BUSY_SHARE: Final = 0.3
"""A loop that works for more than this part of the pause, or wakes up later than `LATE_S`, is busy."""
LATE_S: Final = 0.002


class Pace:
    """The next slice and the pause before it."""

    def __init__(self) -> None:
        self.size = LEAST_SLICE
        self.pause_s = INDEX_DELAY_S
        self._busy = False

    def paused(self, pause_s: float, worked_s: float) -> None:
        """A pause took `pause_s`; the loop's thread used the processor for `worked_s` of it."""
        late = pause_s - self.pause_s > LATE_S
        self._busy = late or worked_s > BUSY_SHARE * self.pause_s

    def indexed(self, took_s: float) -> None:
        """A slice took `took_s`."""
        self.pause_s = took_s * (BUSY_PAUSES if self._busy else IDLE_PAUSES)
        if took_s < SLICE_S:
            self.size = min(MOST_SLICE, 2 * self.size)
        else:
            self.size = max(LEAST_SLICE, int(self.size * SLICE_S / took_s))

    def failed(self) -> None:
        """The log cannot be read: try again later."""
        self.pause_s = INDEX_DELAY_S
