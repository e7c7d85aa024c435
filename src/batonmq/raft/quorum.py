"""Majorities. The two questions of Raft: how far has a majority come, and has a vote been decided?"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Mapping


class Vote(enum.Enum):
    PENDING = "pending"
    WON = "won"
    LOST = "lost"


def majority(size: int) -> int:
    """How many of ``size`` voters are a majority."""
    return size // 2 + 1


def reached_by_majority(values: Iterable[int]) -> int:
    """The largest number that a majority of ``values`` (one a voter, at least one voter) has reached."""
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) // 2]


def tally(votes: Mapping[str, bool], voters: Collection[str]) -> Vote:
    """The state of an election: ``votes`` holds the answers so far, those of non-voters do not count."""
    needed = majority(len(voters))
    yes = sum(1 for voter in voters if votes.get(voter) is True)
    no = sum(1 for voter in voters if votes.get(voter) is False)
    if yes >= needed:
        return Vote.WON
    # Once the rest can no longer reach a majority, waiting is pointless.
    return Vote.LOST if len(voters) - no < needed else Vote.PENDING
