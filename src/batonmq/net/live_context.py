"""TLS contexts that follow their files."""

from __future__ import annotations

import logging
import ssl
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from batonmq.common.config import ConfigError

log = logging.getLogger(__name__)

LOOK_EVERY_S: Final = 1.0
"""Least time between two looks at the PEM files; RocketMQ looks twice a second."""


class LiveContext:
    """A context that follows its PEM files: connections that begin after a file was replaced use the new one,
    as with RocketMQ's servers (`FileWatchService`). Open connections keep what they began with.

    It looks when a connection asks, so there is nothing to start or stop. Files that cannot be used, such as
    a certificate whose key is not replaced yet, are logged, and the last usable ones stay in use. Each look
    tries them again: why they cannot be used may lie outside of them, as with too many open files.
    """

    def __init__(
        self,
        build: Callable[[], ssl.SSLContext],
        paths: Iterable[str],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`paths`: the files that `build` reads; empty ones are left out. Raises what `build` raises."""
        self._build = build
        self._paths = [path for path in paths if path]
        self._now_s = now_s
        self._state = self._look()  # before the files are read: a change in between is seen later
        self._context = build()
        self._problem = ""
        """Why the files of the last look cannot be used; empty if they are in use."""
        self._looked_s = now_s()

    def current(self) -> ssl.SSLContext:
        """The context for a connection that begins now."""
        now_s = self._now_s()
        if now_s - self._looked_s >= LOOK_EVERY_S:
            self._looked_s = now_s
            state = self._look()
            if state != self._state or self._problem:
                self._state = state
                self._reload()
        return self._context

    def _look(self) -> list[tuple[int, int, int] | None]:
        return [_file_state(path) for path in self._paths]

    def _reload(self) -> None:
        try:
            self._context = self._build()
        except ConfigError as error:
            if str(error) != self._problem:
                log.error("TLS files changed and cannot be used, the previous ones stay in use: %s", error)
            self._problem = str(error)
        else:
            self._problem = ""
            log.info("TLS files changed, new connections use them: %s", ", ".join(self._paths))


def _file_state(path: str) -> tuple[int, int, int] | None:
    """Differs after a file was replaced or written; None: there is none."""
    try:
        status = Path(path).stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns
