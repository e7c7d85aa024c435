"""Plain logging: one line per event on stderr, or in a rotating file."""

from __future__ import annotations

import logging
import logging.handlers
import sys
from collections.abc import Collection
from contextvars import ContextVar
from itertools import islice
from pathlib import Path

log_identity: ContextVar[str] = ContextVar("log_identity", default="")
"""Which of several servers in this process a line is from; empty: there is one. Set in the context in which
a server starts, and so in that of all its tasks and connections."""

_FORMAT = "%(asctime)s.%(msecs)03d %(levelname)s %(name)s %(server)s%(message)s"
_DATE = "%Y-%m-%d %H:%M:%S"
MAX_LINE = 16_384
"""Characters of a line. A peer's text may have as many as a frame; the log must not grow by that."""
WHOLE = {"whole": True}
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), 127)}


class OneLine(logging.Formatter):
    """Shows control characters of a message as escapes: text from a peer (a client id, a name) must not look
    like a separate log line. Tracebacks keep their lines. What is longer than `MAX_LINE` is cut,
    unless it is logged with `WHOLE` as `extra`."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        server = log_identity.get()
        record.server = f"[{server}] " if server else ""
        line = super().formatMessage(record)
        if len(line) > MAX_LINE and not hasattr(record, "whole"):
            line = f"{line[:MAX_LINE]}... ({len(line) - MAX_LINE} characters more)"
        return line.translate(_CONTROLS)


def some(names: Collection[str], most: int = 8) -> str:
    """Names for a log line: the first few, and how many more there are."""
    shown = ", ".join(islice(names, most))
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


def set_up(
    level: str = "INFO", file: Path | None = None, *, max_bytes: int = 64 << 20, backups: int = 5
) -> None:
    """Direct all log lines of this process to ``file`` (rotated at ``max_bytes``), or to stderr.

    Raises:
        ValueError: ``level`` is not a level of `logging`.
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
    handler.setFormatter(OneLine(_FORMAT, _DATE))
    root = logging.getLogger()
    root.setLevel(level.upper())
    for old in root.handlers[:]:
        root.removeHandler(old)
        old.close()
    root.addHandler(handler)
