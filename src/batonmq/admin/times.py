"""Points in time as mqadmin's users write them."""

from __future__ import annotations

import re
import time
from datetime import datetime
from typing import Final

from batonmq.admin.operations.messages import ALWAYS
from batonmq.admin.session import AdminError

TIME: Final = "now, ms since 1970, or yyyy-MM-dd#HH:mm:ss:SSS"
"""For the help of an option that takes one."""
_MS = re.compile(r"-?[0-9]{1,18}")
_FORMS = ("%Y-%m-%d#%H:%M:%S:%f", "%Y-%m-%d#%H:%M:%S", "%Y-%m-%d")


def parse_time(text: str) -> int:
    """``now`` is -1, which brokers take for the end of a queue; else ms since 1970 or mqadmin's date form in
    local time. Raises `AdminError`."""
    if text == "now":
        return -1
    if _MS.fullmatch(text):
        return int(text)
    for form in _FORMS:
        try:
            return int(datetime.strptime(text, form).timestamp() * 1000)
        except (ValueError, OverflowError):
            continue
    raise AdminError(f"{text!r} is not a time; write {TIME}")


def parse_times(begin: str | None, end: str | None) -> tuple[int, int]:
    """First and last ms of ``-b`` and ``-e``; all times for what is not given. Raises `AdminError`."""
    first, last = ALWAYS
    return _moment(begin) if begin else first, _moment(end) if end else last


def _moment(text: str) -> int:
    """As `parse_time`, but ``now`` is the time: -1 stands for the end of a queue only where offsets move."""
    return time.time_ns() // 1_000_000 if text == "now" else parse_time(text)
