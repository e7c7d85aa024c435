"""Sends that are stored but not yet acknowledged: what they wait for, in what order they may be answered.

Owns the order and the deadlines only; it never sends an answer, reads a clock or knows what an answer looks
like. The log hands out offsets in the order in which sends are added, and each send waits the same time, so
both offsets and deadlines only grow and a queue does what a heap would (`docs/architecture.md`, hot path).
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class PendingAcks(Generic[T]):
    """FIFO of sends waiting for an offset. `T` is whatever the shell needs to answer one send."""

    __slots__ = ("_waiting", "acked_offset")

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, int, T]] = deque()
        self.acked_offset = -1
        """Every send that ends at or below this physical offset may be answered."""

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, end_offset: int, deadline_ms: int, send: T) -> None:
        """`send` ends at physical offset `end_offset` (exclusive) and gives up at `deadline_ms`."""
        assert not self._waiting or end_offset >= self._waiting[-1][0], "sends are added in log order"
        self._waiting.append((end_offset, deadline_ms, send))

    def complete(self, acked_offset: int) -> list[T]:
        """The log is acknowledged up to `acked_offset`; returns the sends that may be answered, in log
        order."""
        self.acked_offset = acked_offset
        waiting = self._waiting
        done: list[T] = []
        while waiting and waiting[0][0] <= acked_offset:
            done.append(waiting.popleft()[2])
        return done

    def expire(self, now_ms: int) -> list[T]:
        """Sends whose time is up at `now_ms`, in log order; they are forgotten."""
        waiting = self._waiting
        expired: list[T] = []
        while waiting and waiting[0][1] <= now_ms:
            expired.append(waiting.popleft()[2])
        return expired

    def next_deadline_ms(self) -> int | None:
        """When `expire` will next have something to return; None while nothing waits."""
        return self._waiting[0][1] if self._waiting else None

    def abandon(self) -> list[T]:
        """Forget and return everything: this broker is master no more and offsets may be used again."""
        abandoned = [send for _, _, send in self._waiting]
        self._waiting.clear()
        self.acked_offset = -1
        return abandoned


def acks_needed(
    *,
    all_in_sync_state_set: bool,
    in_sync_replicas: int,
    min_in_sync_replicas: int,
    auto_in_sync_replicas: bool,
    replicas_in_sync: int,
) -> int | None:
    """Copies a message needs (the master's counts), -1 for the whole SyncStateSet, None if it must be
    refused.

    `replicas_in_sync` counts the master. Source: quorum write (RIP-34) and RocketMQ's controller mode, where
    minInSyncReplicas guards the size of the SyncStateSet.
    """
    if replicas_in_sync < min_in_sync_replicas:
        return None
    if all_in_sync_state_set:
        return -1
    if auto_in_sync_replicas:
        return max(min(in_sync_replicas, replicas_in_sync), min_in_sync_replicas)
    return in_sync_replicas
