"""Tracks undecided half messages, and the offset up to which both queues of transactions are finished.

No I/O. A half message waits in queue 0 of RMQ_SYS_TRANS_HALF_TOPIC. A commit or rollback is written to
RMQ_SYS_TRANS_OP_HALF_TOPIC as an op message that names queue offsets of half messages. The group
CID_RMQ_SYS_TRANS has one offset in each of the two queues: everything before it is finished.

`HalfWindow` holds one byte for each half message between the first undecided one and the end of the queue, so
a million undecided messages take a megabyte. Its offset moves past a message only when an op message that
names it is confirmed. The committed message is before the op message in the log, so all replicas have it
then. Source of the layout: RocketMQ's `TransactionalMessageServiceImpl`.
"""

from __future__ import annotations

import re
from collections import deque
from enum import IntEnum
from typing import Final


class State(IntEnum):
    """The byte of a half message. Values below `COMMITTING` count the checks by this master."""

    COMMITTING = 248
    """The committed message is on its way to the log."""
    COMMITTED = 249
    ROLLED_BACK = 250
    MOVED = 251
    """Stored again at the end of the half queue, or given up. No op message is confirmed yet."""
    DECIDED = 252
    """A confirmed op message names it; it was committed or rolled back."""
    COMMITTED_SAFE = 253
    ROLLED_BACK_SAFE = 254
    MOVED_SAFE = 255
    """As without `SAFE`, and a confirmed op message names it."""


MAX_CHECKS: Final = State.COMMITTING - 1
"""Most checks that a byte can count."""
_SAFE: Final = {
    State.COMMITTED: State.COMMITTED_SAFE,
    State.ROLLED_BACK: State.ROLLED_BACK_SAFE,
    State.MOVED: State.MOVED_SAFE,
}
_DECIDED: Final = frozenset(
    {State.COMMITTED, State.ROLLED_BACK, State.DECIDED, State.COMMITTED_SAFE, State.ROLLED_BACK_SAFE}
)
_STORED_AGAIN: Final = frozenset({State.MOVED, State.MOVED_SAFE})
_UNDECIDED_BYTE: Final = re.compile(rb"[\x00-\xf7]", re.DOTALL)
_UNSAFE_BYTE: Final = re.compile(rb"[\x00-\xfb]", re.DOTALL)
_COUNTED: Final = re.compile(rb"[^\x00]+", re.DOTALL)
_CHECKS_OF: Final = bytes(state if state <= MAX_CHECKS else 0 for state in range(256))
_OTHER_BYTE: Final = re.compile(rb"[\xf8-\xff]", re.DOTALL)

HISTORY: Final = 1 << 20
"""Number of messages before the offset that are remembered, for late or repeated requests about them."""
_TRIM: Final = 1 << 16
"""Bytes that are removed at a time, because each removal copies the rest."""
_FINE_OPS: Final = 4_096
"""Op messages that are tracked one by one; if there are more, neighbours share an entry."""
_OPS_PER_ENTRY: Final = 256


class HalfWindow:
    """The half messages from the first unfinished one to the end of the queue."""

    def __init__(self, offset: int, op_offset: int) -> None:
        """`offset`, `op_offset`: the stored offsets of the half and op queue."""
        self._start = offset
        """Queue offset of the first byte."""
        self._states = bytearray()
        self.offset = offset
        """First unfinished half message: the offset to store."""
        self.op_offset = op_offset
        """First op message that names a half message at or after `offset`: the offset to store."""
        self.next_op = op_offset
        """The next op message to read."""
        self._ops: deque[tuple[int, int, int]] = deque()
        """(first op offset, op offset after the last, half offset from which they are no longer needed), in
        order."""
        self._late: dict[int, int] = {}
        """Decided messages before `offset` of which a copy may still be in the queue -> offset from which no
        copy remains."""

    @property
    def end(self) -> int:
        """Queue offset after the last byte."""
        return self._start + len(self._states)

    @property
    def size(self) -> int:
        """Half messages in the window, decided ones included."""
        return self.end - self.offset

    def grow(self, end: int) -> None:
        """The half queue ends at `end`."""
        if end > self.end:
            self._states.extend(bytes(end - self.end))

    def state(self, offset: int) -> int:
        """The byte of a half message, even of one shortly before the window; 0 if it is unknown."""
        return self._states[offset - self._start] if self._start <= offset < self.end else 0

    def remembers(self, offset: int) -> bool:
        """Whether this master knows all decisions about this message. It does not know those about older
        messages, before the window."""
        return offset >= self._start or offset in self._late

    def checks(self, offset: int) -> int:
        """How often an undecided message was checked since it was stored."""
        state = self.state(offset)
        return state if state <= MAX_CHECKS else 0

    def is_undecided(self, offset: int) -> bool:
        return self.offset <= offset < self.end and self._states[offset - self._start] <= MAX_CHECKS

    def is_decided(self, offset: int) -> bool:
        """Whether it is known that the producer has committed or rolled back this message."""
        if offset in self._late:
            return not self.is_undecided(offset)
        return self.state(offset) in _DECIDED

    def set(self, offset: int, state: int) -> None:
        """Set the byte of a message, even of one shortly before the window. If the message may have been
        stored again, the decision is remembered for the copy."""
        if state in _DECIDED and (offset < self.offset or self.state(offset) in _STORED_AGAIN):
            self.remember(offset)
        if offset >= self._start:
            self.grow(offset + 1)
            self._states[offset - self._start] = state

    def set_safe(self, offset: int, state: State) -> None:
        """Set the byte of a message that no op message will name, because an acting master writes none."""
        self.set(offset, state)
        if offset >= self._start:
            self._states[offset - self._start] = _SAFE[state]

    def remember(self, offset: int) -> None:
        """A decided message has a copy in the queue: remember the decision until no copy can remain."""
        self._late[offset] = self.end

    def all_checks(self) -> bytes:
        """How often each message from `offset` on was checked; 0 for decided messages."""
        return bytes(self._states[self.offset - self._start :]).translate(_CHECKS_OF)

    def learn_checks(self, offset: int, counts: bytes) -> None:
        """Take over an earlier master's number of checks of undecided messages from `offset` on. Higher
        counts of this master stay."""
        begin = max(offset, self.offset)
        end = min(offset + len(counts), self.end)
        counts = counts[begin - offset : max(end - offset, 0)]
        for run in _COUNTED.finditer(counts):
            first = begin + run.start() - self._start
            before = self._states[first : first + len(run[0])]
            if not before.strip(b"\0"):
                self._states[first : first + len(before)] = run[0].translate(_CHECKS_OF)
                continue
            for at, (known, learned) in enumerate(zip(before, run[0], strict=True), first):
                if known <= MAX_CHECKS:
                    self._states[at] = max(known, min(learned, MAX_CHECKS))

    def next_undecided(self, offset: int, most: int) -> tuple[int, int] | None:
        """(first undecided message at or after `offset`, number of undecided ones in a row there, at most
        `most`); None if there is none."""
        at = max(offset, self.offset) - self._start
        found = _UNDECIDED_BYTE.search(self._states, at)
        if found is None:
            return None
        begin = found.start()
        other = _OTHER_BYTE.search(self._states, begin, begin + most)
        end = min(begin + most, len(self._states)) if other is None else other.start()
        return self._start + begin, end - begin

    # -- op messages

    def op_read(self, op_offset: int, offsets: list[int], *, moved: bool = False) -> None:
        """A confirmed op message names these half messages. Call it for each op message in order.

        An offset beyond the end of the half queue is ignored: an op message never comes before its half
        message.
        """
        needless_from = self.offset
        for offset in offsets:
            if offset >= self.end:
                continue
            at = offset - self._start
            known = self._states[at] if at >= 0 else State.MOVED_SAFE
            if known in _STORED_AGAIN and not moved:
                self.remember(offset)
            if offset in self._late:
                needless_from = max(needless_from, self._late[offset])
            needless_from = max(needless_from, offset + 1)
            if known < State.DECIDED:
                other = State.MOVED_SAFE if moved else State.DECIDED
                self._states[at] = _SAFE.get(State(known), other) if known >= State.COMMITTED else other
        self.next_op = op_offset + 1
        self._add_op(op_offset, needless_from)

    def _add_op(self, op_offset: int, needless_from: int) -> None:
        ops = self._ops
        if ops:
            first, _, before = ops[-1]
            full = len(ops) >= _FINE_OPS and op_offset - first < _OPS_PER_ENTRY
            if needless_from <= before or full:
                ops[-1] = (first, op_offset + 1, max(before, needless_from))
                return
        ops.append((op_offset, op_offset + 1, needless_from))

    def skip_ops(self, op_offset: int) -> None:
        """The op messages before `op_offset` were deleted."""
        self._ops.clear()
        self.next_op = self.op_offset = max(op_offset, self.op_offset)

    # -- progress

    def advance(self) -> bool:
        """Move both offsets as far as possible; True if one moved."""
        at = self.offset - self._start
        found = _UNSAFE_BYTE.search(self._states, at)
        offset = self.end if found is None else self._start + found.start()
        before = self.offset, self.op_offset
        self.offset = max(offset, self.offset)
        old = self.offset - HISTORY - self._start
        if old > _TRIM:
            del self._states[:old]
            self._start += old
        ops = self._ops
        while ops and ops[0][2] <= self.offset:
            self.op_offset = ops.popleft()[1]
        if not ops:
            self.op_offset = self.next_op
        if self._late:
            self._late = {late: until for late, until in self._late.items() if until > self.offset}
        return before != (self.offset, self.op_offset)

    def drop(self, begin: int, end: int) -> None:
        """The half messages from `begin` to before `end` are permanently unreadable."""
        self.grow(end)
        at = max(begin, self.offset) - self._start
        count = end - self._start - at
        if count > 0:
            self._states[at : at + count] = bytes([State.MOVED_SAFE]) * count
