"""When a node stands for election, and how long it holds on to a leader (4.2.3, 9.6)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

from batonmq.raft.config import RaftConfig

EARLY_ATTEMPTS: Final = 3
"""How often a follower that knows its leader to be gone asks for votes soon, before it waits as usual."""


class RandomSource(Protocol):
    """The part of random.Random that spreads election timeouts; a core does not import `random`."""

    def randrange(self, start: int, stop: int, /) -> int: ...


class ElectionTimer:
    """One node's election timer. Times are in ms; ``voters`` are those of the membership in force."""

    def __init__(self, node_id: str, config: RaftConfig, rng: RandomSource, now_ms: int) -> None:
        self._id = node_id
        self.config = config
        self._rng = rng
        self.deadline_ms = now_ms
        """When the node asks for votes, unless a leader contacts it before."""
        # With leases: before the restart this node may have answered a leader whose lease still runs.
        self.contact_ms: int | None = now_ms if config.lease_read else None
        """When a leader's last message arrived."""
        self.lost_leader: str | None = None
        """A leader whose process is gone, until a message of any leader arrives."""
        self._early_attempts = 0

    def arm_first(self, now_ms: int) -> None:
        """A short wait: pre-vote keeps a node that merely restarted from disturbing a leader.

        Not shorter than what it may have promised just before it restarted: a leader may still count on that.
        """
        config = self.config
        shortest = 2 * config.heartbeat_interval_ms
        later = max(0, config.lease_promise_ms - shortest)
        self.deadline_ms = now_ms + later + self._rng.randrange(shortest, config.election_timeout_ms)

    def arm(self, now_ms: int, voters: Iterable[str]) -> None:
        """Start a new election timeout."""
        if self._early_attempts:
            promised = now_ms if self.contact_ms is None else self.contact_ms + self.config.lease_promise_ms
            self.deadline_ms = max(now_ms, promised) + self._early_wait_ms(voters)
            self._early_attempts -= 1
            return
        timeout = self.config.election_timeout_ms
        self.deadline_ms = now_ms + self._rng.randrange(timeout, 2 * timeout)

    def _early_wait_ms(self, voters: Iterable[str]) -> int:
        """One heartbeat after the other, in the members' order: chance alone would often split the votes of
        those who lost their leader at the same moment."""
        others = [voter for voter in voters if voter != self.lost_leader]
        place = others.index(self._id) if self._id in others else len(others)
        if self._early_attempts < EARLY_ATTEMPTS:
            place += len(others)
        interval = self.config.heartbeat_interval_ms
        return place * interval + self._rng.randrange(0, interval // 2 + 1)

    def lose(self, leader: str) -> bool:
        """The process of ``leader`` is gone: the next timeouts are short. Returns False if that was known."""
        if self.lost_leader is not None:
            return False
        self.lost_leader = leader
        self._early_attempts = EARLY_ATTEMPTS
        return True

    def forget_loss(self) -> None:
        """There is a leader."""
        self.lost_leader = None
        self._early_attempts = 0

    def yield_to_candidate(self) -> None:
        """The node voted for another, which gets a full timeout."""
        self._early_attempts = 0

    def is_sticky(self, now_ms: int) -> bool:
        """Whether the node refuses to help elect another leader than the one that contacted it lately."""
        if self.contact_ms is None:
            return False
        config = self.config
        length = config.election_timeout_ms if self.lost_leader is None else config.lease_promise_ms
        return now_ms < self.contact_ms + length
