"""When commit log files go: past their time, or before it when the disk is nearly full."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from batonmq.common.clock import Clock
from batonmq.store.config import StoreConfig
from batonmq.store.disk import DiskState, expired_count, is_delete_hour, judge
from batonmq.store.mapped import MappedLog

log = logging.getLogger(__name__)


class Expiry:
    """The disk's state as it was seen last, and what follows from it for the files of a log. Each call is
    given the configuration as it is then, for levels and times can be changed while the store is open."""

    __slots__ = ("_clock", "_files", "_usage", "disk")

    def __init__(self, clock: Clock, files: MappedLog, usage: Callable[[Path], float]) -> None:
        """`usage`: used part, 0 to 1, of the file system that holds a path."""
        self._clock = clock
        self._files = files
        self._usage = usage
        self.disk = DiskState(writable=True, clean=False, forcibly=False)

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
        state, now = self.check_disk(config), self._clock.now_ms()
        if not state.clean and not is_delete_hour(config, now):
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
