"""Plain logging: one line per event on stderr, or in a rotating file."""

from __future__ import annotations

import logging
import logging.handlers
import sys
from pathlib import Path

_FORMAT = "%(asctime)s.%(msecs)03d %(levelname)s %(name)s %(message)s"
_DATE = "%Y-%m-%d %H:%M:%S"


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
    handler.setFormatter(logging.Formatter(_FORMAT, _DATE))
    root = logging.getLogger()
    root.setLevel(level.upper())
    for old in root.handlers[:]:
        root.removeHandler(old)
        old.close()
    root.addHandler(handler)
