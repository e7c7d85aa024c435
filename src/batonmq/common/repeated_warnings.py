"""Warnings that a remote peer can cause as often as it likes: each kind is logged once a minute."""

from __future__ import annotations

import re
from logging import Logger

PERIOD_MS = 60_000
MOST_KINDS = 256
"""Kinds kept apart; beyond that (say, one warning from thousands of addresses) all count as one kind."""
MOST_TEXT = 300
"""Characters of a line, because it may quote what the peer sent."""
_NUMBERS = re.compile(r"\d+")


class RepeatedWarnings:
    """Logs each kind of warning of each host once in `PERIOD_MS`, and then how many were left out.

    Two warnings are of one kind if they differ only in their numbers.
    """

    def __init__(self, log: Logger) -> None:
        self._log = log
        self._logged: dict[tuple[str, str], tuple[int, int]] = {}
        """Kind → when it was last logged (ms), and how many were left out since."""

    def warn(self, peer: str, text: str, now_ms: int) -> None:
        """Log ``peer text``. `peer` is ``host:port``; `now_ms` is monotonic."""
        if len(text) > MOST_TEXT:
            text = text[:MOST_TEXT] + "…"
        peer, text = _one_line(peer[:MOST_TEXT]), _one_line(text)
        host = peer.rpartition(":")[0] or peer
        kind = (host, _NUMBERS.sub("#", text))
        if kind not in self._logged and len(self._logged) >= MOST_KINDS:
            self._forget(now_ms)
            if len(self._logged) >= MOST_KINDS:
                kind = ("", "")
        since_ms, left_out = self._logged.get(kind, (now_ms - PERIOD_MS, 0))
        if now_ms - since_ms < PERIOD_MS:
            self._logged[kind] = since_ms, left_out + 1
            return
        self._logged[kind] = now_ms, 0
        more = f" ({left_out} more of these since the last such line)" if left_out else ""
        self._log.warning("%s %s%s", peer, text, more)

    def _forget(self, now_ms: int) -> None:
        self._logged = {kind: last for kind, last in self._logged.items() if now_ms - last[0] < PERIOD_MS}


def _one_line(text: str) -> str:
    """`text` with unprintable characters replaced: a peer must not forge log lines."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)
