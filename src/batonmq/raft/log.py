"""The log in memory: a base (the compacted past) and the entries after it.

Owns no durability: which entries are on disk is known to ``core``. The part in memory is bounded by the
snapshot policy of ``node``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from operator import attrgetter
from typing import Final

from batonmq.raft.messages import Entry

_ENTRY_OVERHEAD_BYTES: Final = 16
"""Added to the payload of each entry when sizes are compared with limits."""

_term = attrgetter("term")


class RaftLog:
    """Entries ``base_index + 1 .. last_index``; the term of ``base_index`` is still known."""

    __slots__ = ("_ends", "_entries", "base_index", "base_term")

    def __init__(self, base_index: int = 0, base_term: int = 0, entries: Sequence[Entry] = ()) -> None:
        self.base_index = base_index
        self.base_term = base_term
        self._entries: list[Entry] = []
        # Running total of bytes up to and including each entry: a batch is cut by bisection, not by a loop.
        self._ends: list[int] = []
        self.extend(entries)

    @property
    def first_index(self) -> int:
        return self.base_index + 1

    @property
    def last_index(self) -> int:
        return self.base_index + len(self._entries)

    @property
    def last_term(self) -> int:
        return self._entries[-1].term if self._entries else self.base_term

    def term(self, index: int) -> int | None:
        """The term at ``index``; None if it was compacted away or does not exist yet."""
        place = index - self.base_index
        if place == 0:
            return self.base_term
        if 0 < place <= len(self._entries):
            return self._entries[place - 1].term
        return None

    def entry(self, index: int) -> Entry:
        return self._entries[index - self.base_index - 1]

    def extend(self, entries: Sequence[Entry]) -> None:
        total = self._ends[-1] if self._ends else 0
        ends = self._ends
        for entry in entries:
            total += len(entry.data) + _ENTRY_OVERHEAD_BYTES
            ends.append(total)
        self._entries.extend(entries)

    def truncate(self, index: int) -> None:
        """Drop ``index`` and all after it."""
        place = index - self.base_index - 1
        assert place >= 0, f"cannot truncate at {index}: compacted up to {self.base_index}"
        del self._entries[place:]
        del self._ends[place:]

    def compact(self, index: int) -> None:
        """Forget the entries up to ``index``, keeping the term of ``index``."""
        place = index - self.base_index
        if place <= 0:
            return
        self.base_term = self._entries[place - 1].term
        self.base_index = index
        del self._entries[:place]
        del self._ends[:place]

    def reset(self, index: int, term: int) -> None:
        """Start again after a snapshot at ``index``."""
        self.base_index, self.base_term = index, term
        self._entries.clear()
        self._ends.clear()

    def slice(self, first: int, last: int) -> list[Entry]:
        """Entries ``first .. last``, both included."""
        return self._entries[first - self.base_index - 1 : last - self.base_index]

    def fit(self, first: int, max_bytes: int) -> int:
        """The last index such that ``first .. last`` stay within ``max_bytes``; at least ``first``."""
        start = first - self.base_index - 1
        before = self._ends[start - 1] if start else self._before_first()
        return max(first, self.base_index + bisect_right(self._ends, before + max_bytes, lo=start))

    def bytes_between(self, after: int, last: int) -> int:
        """Bytes of the entries ``after + 1 .. last``."""
        if last <= after:
            return 0
        start = after - self.base_index
        before = self._ends[start - 1] if start else self._before_first()
        return self._ends[last - self.base_index - 1] - before

    def _before_first(self) -> int:
        # After a compaction the running totals do not start at zero.
        if not self._ends:
            return 0
        return self._ends[0] - len(self._entries[0].data) - _ENTRY_OVERHEAD_BYTES

    def last_with_term_at_most(self, index: int, term: int) -> tuple[int, int]:
        """The last place at or before ``index`` whose term is at most ``term``, as (index, term).

        Both sides use it to find where two logs can still agree: beyond it they cannot. A place in the
        compacted past has the term 0 (unknown).
        """
        place = min(index - self.base_index, len(self._entries))
        if place < 0:
            return index, 0
        place = bisect_right(self._entries, term, hi=place, key=_term)
        if place:
            return self.base_index + place, self._entries[place - 1].term
        return (self.base_index, self.base_term) if self.base_term <= term else (self.base_index - 1, 0)

    def is_up_to_date(self, last_index: int, last_term: int) -> bool:
        """Whether a log ending at (``last_index``, ``last_term``) is at least as complete as this (3.6.1)."""
        return (last_term, last_index) >= (self.last_term, self.last_index)
