"""The memberships in the log. The newest is in force from the moment it is appended (4.1)."""

from __future__ import annotations

from collections.abc import Sequence

from batonmq.raft.errors import MembershipRefused
from batonmq.raft.messages import Entry, Kind, Members, decode_members


def check_change(current: Members, wanted: Members) -> None:
    """Raises MembershipRefused unless the change is one safe step (4.1)."""
    if len(current.voters.keys() ^ wanted.voters.keys()) > 1:
        raise MembershipRefused("only one voter may be added or removed at a time")
    if not wanted.voters:
        raise MembershipRefused("the last voter cannot be removed")
    if wanted.voters.keys() & wanted.learners.keys():
        raise MembershipRefused("a node is either a voter or a learner")


class Memberships:
    """The memberships from the snapshot (or the beginning) on, each with its index, oldest first."""

    def __init__(self, index: int, members: Members) -> None:
        self._known: list[tuple[int, Members]] = [(index, members)]
        self.index = index
        """Index of the newest."""
        self.newest = members

    def record(self, first: int, entries: Sequence[Entry]) -> None:
        """``entries`` were appended from index ``first`` on."""
        for place, entry in enumerate(entries):
            if entry.kind == Kind.MEMBERS and first + place > self.index:
                self._known.append((first + place, decode_members(entry.data)))
                self._settle()

    def cut(self, index: int) -> None:
        """The log was cut from ``index`` on."""
        while self._known[-1][0] >= index:
            self._known.pop()
        self._settle()

    def forget_before(self, index: int) -> None:
        """Drop those that were not in force at ``index`` or later."""
        while len(self._known) > 1 and self._known[1][0] <= index:
            del self._known[0]

    def at(self, index: int) -> tuple[int, Members]:
        """The index and the membership in force at ``index``, which must not lie before the oldest."""
        return next((at, members) for at, members in reversed(self._known) if at <= index)

    def members_at(self, index: int) -> Members:
        return self.at(index)[1]

    def _settle(self) -> None:
        self.index, self.newest = self._known[-1]
