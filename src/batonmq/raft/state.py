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


class Ready:
    """What came out of a turn."""

    __slots__ = (
        "entries",
        "first_index",
        "forgetful",
        "messages",
        "needs_snapshot",
        "offer",
        "reads",
        "refused",
    )

    # Not a dataclass, whose constructor mypyc does not compile: there is one of these for each input.
    def __init__(
        self,
        messages: list[tuple[str, Message]],
        first_index: int,
        entries: list[Entry],
        offer: Offer | None,
        refused: list[tuple[str, str]],
        forgetful: list[tuple[str, int]],
        reads: list[tuple[int, int | None]],
        needs_snapshot: bool,
    ) -> None:
        self.messages = messages
        self.first_index = first_index
        self.entries = entries
        """Committed entries from ``first_index`` on, to be applied in order."""
        self.offer = offer
        """It covers ``entries``, too: restore the state machine from it and call ``install``, or ``refuse``
        if that is not possible; in either case before any other input."""
        self.refused = refused
        """(sender, why) of snapshots that were refused, for the log."""
        self.forgetful = forgetful
        """(peer, index) of entries that a peer had acknowledged and has no longer, for the log."""
        self.reads = reads
        """(number, index): the read may be answered once ``index`` is applied; None: refused, ask again."""
        self.needs_snapshot = needs_snapshot
        """A follower needs the newest snapshot: read it from disk and hand it to ``snapshot_loaded``."""
