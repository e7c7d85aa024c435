"""Chooses the commit log files to delete: expired ones, and younger ones when the disk is nearly full."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

from batonmq.common.clock import Clock
from batonmq.store.config import StoreConfig
from batonmq.store.disk import DiskState, expired_count, is_delete_hour, judge
from batonmq.store.mapped import MappedLog

log = logging.getLogger(__name__)

HOUR_MS: Final = 3_600_000
DOUBT_MS: Final = 24 * HOUR_MS
"""How long a clock must have been set ahead before files go by it."""


class SteadyWallTime:
    """The wall clock, but a step ahead counts a day later.

    If the clock is set ahead by mistake, every message would seem to be past its time, and nothing brings
    deleted files back. A clock that is right again within a day has deleted nothing.
    """

    __slots__ = ("_clock", "_monotonic_ms", "_since_ms", "_wall_ms")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._wall_ms, self._monotonic_ms = clock.now_ms(), clock.monotonic_ms()
        self._since_ms: int | None = None
        """Since when the clock is ahead, monotonic."""

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch. To be read more often than once an hour, as slow corrections of
        the clock are no steps."""
        wall_ms, monotonic_ms = self._clock.now_ms(), self._clock.monotonic_ms()
        expected_ms = self._wall_ms + monotonic_ms - self._monotonic_ms
        ahead_ms = wall_ms - expected_ms
        if ahead_ms > HOUR_MS:
            if self._since_ms is None:
                self._since_ms = monotonic_ms
                log.warning(
                    "the clock was set ahead by %.1f hours: expired files are deleted by the former time for "
                    "a day. If the clock is right now, a restart of the broker ends that",
                    ahead_ms / HOUR_MS,
                )
            if monotonic_ms - self._since_ms < DOUBT_MS:
                return expected_ms
        self._since_ms = None
        self._wall_ms, self._monotonic_ms = wall_ms, monotonic_ms
        return wall_ms


class Expiry:
    """The disk's state as it was seen last, and what follows from it for the files of a log. Each call is
    given the configuration as it is then, for levels and times can be changed while the store is open."""

    __slots__ = ("_clock", "_files", "_steady", "_usage", "disk")

    def __init__(self, clock: Clock, files: MappedLog, usage: Callable[[Path], float]) -> None:
        """`usage`: used part, 0 to 1, of the file system that holds a path."""
        self._clock = clock
        self._steady = SteadyWallTime(clock)
        self._files = files
        self._usage = usage
        self.disk = DiskState(writable=True, clean=False, forcibly=False)

    def doubted_ms(self) -> int:
        """How far the clock is ahead by a step that does not count yet."""
        return self._clock.now_ms() - self._steady.now_ms()

    def check_disk(self, config: StoreConfig) -> DiskState:
        """Look at the disk's usage."""
        state = judge(self._usage(config.commit_log_path), config)
        if state.writable != self.disk.writable:
            log.warning("disk usage: messages are %s", "accepted again" if state.writable else "refused")
        self.disk = state
        return state

    def drop_expired(self, config: StoreConfig, dispatched: int) -> list[Path]:
        """Look at the disk's usage and detach files that have to go. Returns their paths for the caller to
        unlink, in order. The file in use is never among them, nor anything not before `dispatched`."""
        state, now = self.check_disk(config), self._steady.now_ms()
        if not state.clean and not is_delete_hour(config, self._clock.now_ms()):
            return []
        files = [file for file in self._files.files if file.base + file.size <= dispatched]
        if len(files) < len(self._files.files):
            files = self._files.files[: len(files) + 1]
        count = expired_count(
            [file.modified_ms() for file in files],
            config,
            now,
            forcibly=state.forcibly,
            limit=config.delete_file_batch_max,
        )
        if not count:
            return []
        paths = self._files.drop_first(count)
        log.info("%d commit log files expired, the log now begins at %d", count, self._files.base)
        return paths
