"""The leader's view of one peer: how far its log agrees, and what is under way to it (10.2.1)."""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass, field

from batonmq.raft.config import RaftConfig
from batonmq.raft.log import RaftLog
from batonmq.raft.messages import AppendReply


class Flow(enum.Enum):
    """How the leader feeds one peer."""

    PROBE = "probe"
    """Where the logs agree is not known: one message at a time."""
    REPLICATE = "replicate"
    """It is known: many messages under way."""
    SNAPSHOT = "snapshot"
    """The entries it needs are compacted: chunks of a snapshot."""


@dataclass(slots=True)
class Progress:
    """The leader's view of one peer (itself included, for ``match``)."""

    next: int
    match: int = 0
    flow: Flow = Flow.PROBE
    inflight: deque[tuple[int, int]] = field(default_factory=deque)
    """(last index, bytes) of each Append under way."""
    inflight_bytes: int = 0
    waiting_since_ms: int | None = None
    """When the oldest unanswered probe or chunk left, or entries under way last made progress. In the future,
    if the peer refused a snapshot: until then it gets none."""
    sent_commit: int = 0
    acked_round: int = 0
    lease_until_ms: int = -1
    """Until when it gives no vote, by this clock: counted from the sending of a heartbeat that it answered
    with such a promise, less the clocks' drift."""
    contact_ms: int = 0
    asked_by: frozenset[str] = frozenset()
    """Voters that asked the peer for pre-votes, as it last reported."""
    snapshot_offset: int = 0

    def clear_inflight(self) -> None:
        self.inflight.clear()
        self.inflight_bytes = 0
        self.waiting_since_ms = None

    def acknowledged(self, log: RaftLog) -> bool:
        """``match`` is what the peer holds now; whether it needs neither snapshot nor probe from now on."""
        if self.flow is Flow.REPLICATE:
            inflight = self.inflight
            while inflight and inflight[0][0] <= self.match:
                self.inflight_bytes -= inflight.popleft()[1]
            if not inflight:
                self.waiting_since_ms = None
        elif self.flow is Flow.PROBE or self.match >= log.base_index:
            self.flow = Flow.REPLICATE
            self.clear_inflight()
            self.next = self.match + 1
            return True
        return False

    def back_up(self, message: AppendReply, log: RaftLog) -> bool:
        """The peer's log does not hold ``message.index``: find the next place to try (5.3 of the paper).

        Returns whether the peer had acknowledged that entry, so that it lost its log (or the refusal is very
        old). ``match`` then falls to what it may still have: it is a lower bound, so that is always safe, and
        without it the peer would refuse the same probe until another node leads."""
        rejected, lost = message.index, False
        if self.flow is Flow.REPLICATE:
            if rejected <= self.match:
                return False  # an old message
            self.next = self.match + 1
        elif self.flow is Flow.PROBE:
            if rejected != self.next - 1:
                return False  # an old message
            agree, _ = log.last_with_term_at_most(min(rejected - 1, message.hint_index), message.hint_term)
            lost = rejected <= self.match
            if lost:
                self.match = min(self.match, agree)
            self.next = max(self.match, agree) + 1
        else:
            return False
        self.flow = Flow.PROBE
        self.clear_inflight()
        return lost

    def refuse_snapshot(self, now_ms: int, config: RaftConfig) -> None:
        """The peer cannot use it: from its beginning again, but not soon."""
        self.snapshot_offset = 0
        self.waiting_since_ms = now_ms + config.refused_snapshot_ms

    def retransmit(self, now_ms: int, config: RaftConfig) -> None:
        """Give up waiting for what was probably lost: it is sent again from where the logs agree."""
        waiting = self.waiting_since_ms
        if waiting is None:
            return
        silence = now_ms - waiting
        if self.flow is Flow.REPLICATE:
            if silence >= config.retransmit_ms:
                self.flow = Flow.PROBE
                self.next = self.match + 1
                self.clear_inflight()
        elif silence >= 2 * config.heartbeat_interval_ms:
            self.waiting_since_ms = None
