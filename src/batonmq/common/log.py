"""Plain logging: one line per event on stderr, or in a rotating file."""

from __future__ import annotations

import logging
import logging.handlers
import sys
from collections.abc import Collection
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

Log: TypeAlias = logging.Logger | logging.LoggerAdapter[logging.Logger]
"""What a part writes its lines to: a module's logger, or one that `named` made of it."""

_FORMAT = "%(asctime)s.%(msecs)03d %(levelname)s %(name)s %(message)s"
_DATE = "%Y-%m-%d %H:%M:%S"
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), 127)}


class _Named(logging.LoggerAdapter[logging.Logger]):
    def __init__(self, log: logging.Logger, name: str) -> None:
        super().__init__(log)
        self._prefix = f"[{name}] "

    def log(self, level: int, msg: object, *args: Any, **kwargs: Any) -> None:
        # `logging` looks at percent signs only where there are arguments to fill in.
        prefix = self._prefix.replace("%", "%%") if args else self._prefix
        super().log(level, f"{prefix}{msg}", *args, **kwargs)


class _OneLine(logging.Formatter):
    """Shows control characters of a message as escapes: what a peer sends (a client id, a name) must not look
    like a log line of its own. Tracebacks keep their lines."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return super().formatMessage(record).translate(_CONTROLS)


def named(log: logging.Logger, name: str) -> Log:
    """`log` with ``[name]`` before each line: whose it is where one process runs several programs."""
    return _Named(log, name)


def some(names: Collection[str], most: int = 8) -> str:
    """Names for a log line: the first few, and how many more there are."""
    shown = ", ".join(islice(names, most))
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


def set_up(
    level: str = "INFO", file: Path | None = None, *, max_bytes: int = 64 << 20, backups: int = 5
) -> None:
    """Direct all log lines of this process to ``file`` (rotated at ``max_bytes``), or to stderr.

    Raises:
        ValueError: ``level`` is no level of `logging`.
        OSError: the file cannot be opened.
    """
    handler: logging.Handler
    if file is None:
        handler = logging.StreamHandler(sys.stderr)
    else:
        file.parent.mkdir(parents=True, exist_ok=True)
        handler = logging.handlers.RotatingFileHandler(
            file, maxBytes=max_bytes, backupCount=backups, encoding="utf-8"
        )
    handler.setFormatter(_OneLine(_FORMAT, _DATE))
    root = logging.getLogger()
    root.setLevel(level.upper())
    for old in root.handlers[:]:
        root.removeHandler(old)
        old.close()
    root.addHandler(handler)
