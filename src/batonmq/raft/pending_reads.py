"""Reads that wait (6.4): on a leader for confirmation, on a follower for its leader's answer."""

from __future__ import annotations

from collections import deque

from batonmq.raft.state import ReadContext


class PendingReads:
    """The reads that wait on one node, by what they wait for. `ReadIndex` decides when they go on."""

    def __init__(self) -> None:
        self.early: list[ReadContext] = []
        """They wait until this leader has committed an entry of its term."""
        self.new: list[ReadContext] = []
        """They wait for the next round of heartbeats."""
        self.in_rounds: deque[tuple[int, int, list[ReadContext]]] = deque()
        """(round, commit index when it began, reads that it confirms), oldest first."""
        self._forwarded: set[int] = set()
        self._done: list[tuple[int, int | None]] = []

    def take_early(self) -> list[ReadContext]:
        early, self.early = self.early, []
        return early

    def begin_round(self, number: int, commit_index: int) -> None:
        """The round confirms all that came before it."""
        self.in_rounds.append((number, commit_index, self.new))
        self.new = []

    def confirmed(self, number: int) -> list[tuple[ReadContext, int]]:
        """A majority answered round ``number``: the reads that may be answered now, each with its index."""
        answers: list[tuple[ReadContext, int]] = []
        rounds = self.in_rounds
        while rounds and rounds[0][0] <= number:
            _, index, contexts = rounds.popleft()
            answers += [(context, index) for context in contexts]
        return answers

    def take_unconfirmed(self) -> list[ReadContext]:
        """All that wait for confirmation, which will not come."""
        waiting = [*self.early, *self.new]
        for _, _, contexts in self.in_rounds:
            waiting += contexts
        self.early, self.new = [], []
        self.in_rounds.clear()
        return waiting

    def forward(self, number: int) -> None:
        """A read of this node waits for its leader's answer."""
        self._forwarded.add(number)

    def forget(self, number: int) -> None:
        """The caller gave up."""
        self._forwarded.discard(number)

    def answered(self, number: int, index: int | None) -> None:
        """The leader's answer; one that nobody waits for is dropped."""
        if number in self._forwarded:
            self._forwarded.discard(number)
            self._done.append((number, index))

    def refuse_forwarded(self) -> None:
        for number in sorted(self._forwarded):
            self._done.append((number, None))
        self._forwarded.clear()

    def done(self, number: int, index: int | None) -> None:
        """A read of this node may be answered once ``index`` is applied; None: it is refused."""
        self._done.append((number, index))

    def take_done(self) -> list[tuple[int, int | None]]:
        """(number, index) of this node's reads that were decided; None: refused."""
        done, self._done = self._done, []
        return done
