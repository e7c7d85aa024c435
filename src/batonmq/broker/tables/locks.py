"""Queue locks of orderly consumers: one consumer of a group at a time holds a queue.

Owns who holds which queue and since when; never reads a clock and never talks to the other brokers of the
group. Source: RocketMQ's LOCK_BATCH_MQ (41) and UNLOCK_BATCH_MQ (42).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

LOCK_LIFETIME_MS = 60_000
"""A lock that its owner has not renewed for longer than this may be taken by another."""

Queue = TypeVar("Queue", bound=Hashable)


@dataclass(slots=True)
class _Lock:
    client_id: str
    renewed_ms: int

    def expired(self, now_ms: int, lifetime_ms: int) -> bool:
        return now_ms - self.renewed_ms > lifetime_ms


class LockTable(Generic[Queue]):
    """Locks by group and queue. A queue is any hashable value that names it."""

    def __init__(self, lifetime_ms: int = LOCK_LIFETIME_MS) -> None:
        self._lifetime_ms = lifetime_ms
        self._groups: dict[str, dict[Queue, _Lock]] = {}

    def try_lock(self, group: str, queues: Iterable[Queue], client_id: str, now_ms: int) -> set[Queue]:
        """Take or renew the locks of `queues`; returns those that `client_id` holds now."""
        held = self._groups.setdefault(group, {})
        mine: set[Queue] = set()
        for queue in queues:
            lock = held.get(queue)
            if lock is None or lock.expired(now_ms, self._lifetime_ms):
                held[queue] = _Lock(client_id, now_ms)
                mine.add(queue)
            elif lock.client_id == client_id:
                lock.renewed_ms = now_ms
                mine.add(queue)
        return mine

    def unlock(self, group: str, queues: Iterable[Queue], client_id: str) -> None:
        """Give up the locks of `queues` that `client_id` holds; those of others stay."""
        held = self._groups.get(group)
        if held is None:
            return
        for queue in queues:
            lock = held.get(queue)
            if lock is not None and lock.client_id == client_id:
                del held[queue]
        if not held:
            del self._groups[group]

    def owner(self, group: str, queue: Queue, now_ms: int) -> str | None:
        """Client that holds the queue, None when nobody does or the lock has run out."""
        lock = self._groups.get(group, {}).get(queue)
        return None if lock is None or lock.expired(now_ms, self._lifetime_ms) else lock.client_id

    def all_expired(self, group: str, now_ms: int) -> bool:
        """True when no member of the group holds a queue any more."""
        return all(lock.expired(now_ms, self._lifetime_ms) for lock in self._groups.get(group, {}).values())

    def drop_expired(self, now_ms: int) -> None:
        """Forget locks that ran out, so that groups that left cost no memory."""
        for group in list(self._groups):
            held = {q: k for q, k in self._groups[group].items() if not k.expired(now_ms, self._lifetime_ms)}
            if held:
                self._groups[group] = held
            else:
                del self._groups[group]
