"""How many replicas hold what, as a master without controllers counts it. Pure.

RocketMQ's stream does not say which slave a link belongs to, and its master counts links. A slave that has
connected again while its former link is not closed yet would count twice. So a link that may be the second
one of its slave counts only for what the former link had not been sent when the slave connected again: the
former one can acknowledge no more than that.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Held(NamedTuple):
    """One link: the slave has everything before `ack_offset`; this counts for ends above `counts_above`."""

    ack_offset: int
    counts_above: int = -1


def acked_by(copies: int, own_end: int, links: Iterable[Held]) -> int:
    """Highest offset that `copies` replicas hold, the master, whose log ends at `own_end`, counted; -1 if
    there are not so many."""
    if copies <= 1:
        return own_end
    held = list(links)
    for end in sorted({min(link.ack_offset, own_end) for link in held}, reverse=True):
        if 1 + sum(link.counts_above < end <= link.ack_offset for link in held) >= copies:
            return end
    return -1


def in_sync(own_end: int, ack_offset: int, max_gap: int) -> bool:
    """Whether a slave keeps up: it has reported, and lags by less than haMaxGapNotInSync bytes
    (DefaultHAService.isInSyncSlave)."""
    return ack_offset >= 0 and own_end - ack_offset < max_gap
