"""Which memberships the log holds. The newest is in force from the moment it is appended (4.1)."""

from __future__ import annotations

from collections.abc import Sequence

from batonmq.raft.messages import Entry, Kind, Members, decode_members


class Memberships:
    """Those from the snapshot (or the beginning) on, with their indexes, oldest first."""

    def __init__(self, index: int, members: Members) -> None:
        self._known: list[tuple[int, Members]] = [(index, members)]
        self.index = index
        """Of the newest."""
        self.newest = members

    def note(self, first: int, entries: Sequence[Entry]) -> None:
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
        """Nobody will ask any more for one that was not in force at ``index`` or later."""
        while len(self._known) > 1 and self._known[1][0] <= index:
            del self._known[0]

    def at(self, index: int) -> tuple[int, Members]:
        """The one in force at ``index``, and since when; ``index`` must not lie before the oldest."""
        return next((at, members) for at, members in reversed(self._known) if at <= index)

    def _settle(self) -> None:
        self.index, self.newest = self._known[-1]
