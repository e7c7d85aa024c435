"""Warnings that a stranger can cause, as often as he likes: each kind is told once in a while."""

from __future__ import annotations

import logging
import re

PERIOD_MS = 60_000
MOST_KINDS = 256
"""More kinds than this (from ever new addresses, say) are counted as one."""
MOST_TEXT = 300
"""Characters of a line, since what a stranger sent may be quoted in it."""
_NUMBERS = re.compile(r"\d+")


class Complaints:
    """Tells each kind of warning of each peer once in `PERIOD_MS`, and then how often it was kept back."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._told: dict[tuple[str, str], tuple[int, int]] = {}

    def warn(self, peer: str, text: str, now_ms: int) -> None:
        """`peer` is ``host:port``; `text` follows it in the line. `now_ms` is monotonic."""
        if len(text) > MOST_TEXT:
            text = text[:MOST_TEXT] + "…"
        peer, text = _one_line(peer[:MOST_TEXT]), _one_line(text)
        host = peer.rpartition(":")[0] or peer
        kind = (host, _NUMBERS.sub("#", text))
        if kind not in self._told and len(self._told) >= MOST_KINDS:
            self._forget(now_ms)
            if len(self._told) >= MOST_KINDS:
                kind = ("", "")
        since_ms, kept_back = self._told.get(kind, (now_ms - PERIOD_MS, 0))
        if now_ms - since_ms < PERIOD_MS:
            self._told[kind] = since_ms, kept_back + 1
            return
        self._told[kind] = now_ms, 0
        more = f" ({kept_back} more of these since the last such line)" if kept_back else ""
        self._log.warning("%s %s%s", peer, text, more)

    def _forget(self, now_ms: int) -> None:
        self._told = {kind: told for kind, told in self._told.items() if now_ms - told[0] < PERIOD_MS}


def _one_line(text: str) -> str:
    """A peer may call itself what it likes, but write no lines of its own into the log."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)
