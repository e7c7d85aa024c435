"""Queue locks of orderly consumers: at most one consumer of a group holds a queue.

Pure: the time is passed in, and the other brokers of the broker set are not involved. Source: RocketMQ's
LOCK_BATCH_MQ (41) and UNLOCK_BATCH_MQ (42).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

LOCK_LIFETIME_MS = 60_000
"""Another consumer may take a lock that its owner has not renewed for longer than this."""

Queue = TypeVar("Queue", bound=Hashable)


@dataclass(slots=True)
class _Lock:
    client_id: str
    renewed_ms: int

    def expired(self, now_ms: int, lifetime_ms: int) -> bool:
        return now_ms - self.renewed_ms > lifetime_ms


class LockTable(Generic[Queue]):
    """Locks by group and queue. Any hashable value can identify a queue."""

    def __init__(self, lifetime_ms: int = LOCK_LIFETIME_MS) -> None:
        self._lifetime_ms = lifetime_ms
        self._groups: dict[str, dict[Queue, _Lock]] = {}

    def try_lock(self, group: str, queues: Iterable[Queue], client_id: str, now_ms: int) -> set[Queue]:
        """Take or renew the locks of `queues`; returns the queues that `client_id` then holds."""
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
        """Release the locks of `queues` that `client_id` holds; other clients keep theirs."""
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
        """The client that holds the queue; None if it is free or the lock has expired."""
        lock = self._groups.get(group, {}).get(queue)
        return None if lock is None or lock.expired(now_ms, self._lifetime_ms) else lock.client_id

    def all_expired(self, group: str, now_ms: int) -> bool:
        """Whether no member of the group holds a queue."""
        return all(lock.expired(now_ms, self._lifetime_ms) for lock in self._groups.get(group, {}).values())

    def drop_expired(self, now_ms: int) -> None:
        """Drop expired locks, so that disconnected groups use no memory."""
        for group in list(self._groups):
            held = {q: k for q, k in self._groups[group].items() if not k.expired(now_ms, self._lifetime_ms)}
            if held:
                self._groups[group] = held
            else:
                del self._groups[group]
