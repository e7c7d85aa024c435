"""Committed entries on their way to the state machine, and their results to the callers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from batonmq.raft.errors import ForeignEntry, ProposalLost
from batonmq.raft.messages import Entry, Kind, Members, Snapshot, SnapshotMeta
from batonmq.raft.proposals import Proposals

_APPLY_PER_TURN: Final = 1_000
"""Entries applied before other callbacks of the loop get a chance."""


class StateMachine(Protocol):
    """What the log is for. Calls come in log order, on the event loop; none may block, nor raise anything but
    what it says here."""

    entry_version: int
    """The newest version of entries that it can read. A node's peers learn it."""

    def apply(self, index: int, data: bytes) -> object:
        """Raises ForeignEntry for bytes that no version writes, which then change nothing, and NewerEntry for
        an entry of a newer version: then the node stops."""
        ...

    def refusal(self, data: bytes) -> str | None:
        """Why this entry of a leader must not enter the log; None if ``apply`` can read it."""
        ...

    def snapshot(self) -> bytes:
        """The whole state, as ``restore`` takes it."""
        ...

    def restore(self, data: bytes) -> None:
        """Replaces the whole state. Raises UnreadableState if ``data`` is no such state, and then changes
        nothing: the bytes may come from anybody."""
        ...


class Applier:
    """Applies entries to ``machine`` in log order, at most so many a turn."""

    def __init__(
        self,
        machine: StateMachine,
        proposals: Proposals,
        ignored: Callable[[int, ForeignEntry], None],
        unclaimed: Callable[[object], None],
    ) -> None:
        """``ignored`` is called with the index of an entry that is none of the state machine's, ``unclaimed``
        with the result of a proposal whose caller was cancelled."""
        self._machine = machine
        self._ignored = ignored
        self._unclaimed = unclaimed
        self._proposals = proposals
        self.committed: deque[tuple[int, list[Entry]]] = deque()
        """(index of the first, entries): committed, and not yet applied."""
        self.index = 0
        """Of the entry applied last."""
        self.term = 0
        """Of that entry."""
        self.bytes_since_snapshot = 0

    def apply(self) -> bool:
        """Apply what one turn may; returns whether entries are left."""
        budget = _APPLY_PER_TURN
        apply, callers = self._machine.apply, self._proposals.appended
        while self.committed and budget > 0:
            index, entries = self.committed.popleft()
            if len(entries) > budget:
                self.committed.appendleft((index + budget, entries[budget:]))
                entries = entries[:budget]
            budget -= len(entries)
            for entry in entries:
                result = None
                if entry.kind == Kind.DATA:
                    self.bytes_since_snapshot += len(entry.data)
                    try:
                        result = apply(index, entry.data)
                    except ForeignEntry as error:
                        self._ignored(index, error)
                if callers:
                    waiting = callers.pop(index, None)
                    if waiting is not None:
                        term, future = waiting
                        if term == entry.term:
                            if future.done():
                                self._unclaimed(result)
                            else:
                                future.set_result(result)
                        elif not future.done():
                            future.set_exception(ProposalLost("another leader's entry took its place"))
                index += 1
            self.index = index - 1
            self.term = entries[-1].term
        return bool(self.committed)

    def snapshot(self, members: Members) -> Snapshot:
        """The state as of the entry applied last; ``members`` is the membership then."""
        snapshot = Snapshot(SnapshotMeta(self.index, self.term, members), self._machine.snapshot())
        self.bytes_since_snapshot = 0
        return snapshot

    def restore(self, snapshot: Snapshot) -> None:
        """Replace the state and what waits to be applied. Raises UnreadableState; nothing changes then."""
        self._machine.restore(snapshot.data)
        self.committed.clear()
        self.index, self.term = snapshot.meta.index, snapshot.meta.term
        self.bytes_since_snapshot = 0
