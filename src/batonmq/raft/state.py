"""The roles, and what passes between the core and its shell: work for the disk, the output of a turn."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TypeAlias

from batonmq.raft.messages import Entry, Message, Snapshot


class Role(enum.Enum):
    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre-candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"

    # That of an enum is a function in Python, and each message looks up its handler by the role.
    __hash__ = object.__hash__


@dataclass(slots=True)
class HardState:
    """What must survive a crash besides the log. ``commit`` is a hint that shortens recovery."""

    term: int = 0
    voted_for: str | None = None
    commit: int = 0


@dataclass(slots=True)
class Save:
    """One unit for the disk: ``snapshot`` first, then hard state and entries together."""

    hard_state: HardState
    first_index: int
    entries: list[Entry]
    snapshot: Snapshot | None
    last_index: int
    last_term: int
    messages: list[tuple[str, Message]]
    """May leave only after this save."""


ReadContext: TypeAlias = int | tuple[str, int]
"""A read of this node (its own number) or of a follower (peer, the follower's number)."""


@dataclass(slots=True)
class Offer:
    """A complete snapshot from ``sender``, whose contents were not checked yet."""

    sender: str
    snapshot: Snapshot


@dataclass(slots=True)
class Ready:
    """What came out of a turn."""

    messages: list[tuple[str, Message]]
    first_index: int
    entries: list[Entry]
    """Committed entries from ``first_index`` on, to be applied in order."""
    offer: Offer | None
    """It covers ``entries``, too: restore the state machine from it and call ``install``, or ``refuse`` if
    that is not possible; in either case before any other input."""
    refused: list[tuple[str, str]]
    """(sender, why) of snapshots that were refused, for the log."""
    reads: list[tuple[int, int | None]]
    """(number, index): the read may be answered once ``index`` is applied; None: refused, ask again."""
    needs_snapshot: bool
    """A follower needs the newest snapshot: read it from disk and hand it to ``snapshot_loaded``."""
