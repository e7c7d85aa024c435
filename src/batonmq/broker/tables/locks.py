"""Queue locks of orderly consumers: at most one consumer of a group holds a queue.

Pure: the time is passed in (monotonic, ms), and the other brokers of the broker set are not involved: see
`broker/locks`. Source: RocketMQ's LOCK_BATCH_MQ (41), UNLOCK_BATCH_MQ (42) and `RebalanceLockManager`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

LOCK_LIFETIME_MS = 60_000
"""Another consumer may take a lock that its owner has not renewed for longer than this."""

MOST_LOCKS: Final = 500_000
"""Locks of a broker; further ones are not granted. Anybody may ask for any number of queues, even of topics
that do not exist, and each lock takes some hundred bytes. RocketMQ has no limit."""

LONG: Final = 256
"""Characters of a lock's names that count as another lock: memory is bounded however long the names are."""

Queue = TypeVar("Queue", bound=Hashable)


@dataclass(slots=True)
class _Lock:
    client_id: str
    renewed_ms: int
    attempt: str = ""
    """The request that took or renewed it last."""
    weight: int = 1
    """How many locks it counts as."""
    before: tuple[int, str] | None = None
    """`renewed_ms` and `attempt` before that; None: that request took it."""

    def expired(self, now_ms: int, lifetime_ms: int) -> bool:
        return now_ms - self.renewed_ms > lifetime_ms


class LockTable(Generic[Queue]):
    """Locks by group and queue. Any hashable value can identify a queue.

    With strict locks a broker asks the others of its set, and names its request by an *attempt*: if too few
    agree, `undo` restores what was there before the attempt, and nothing that came after it.
    """

    def __init__(
        self, lifetime_ms: int = LOCK_LIFETIME_MS, names: Callable[[Queue], int] = lambda queue: 0
    ) -> None:
        """`names`: how many characters the names of a queue have."""
        self._lifetime_ms = lifetime_ms
        self._names = names
        self._groups: dict[str, dict[Queue, _Lock]] = {}
        self._count = 0
        self.new_owners = 0
        """Number of locks that were given to another owner than before, so far."""

    @property
    def full(self) -> bool:
        return self._count >= MOST_LOCKS

    def try_lock(
        self, group: str, queues: Iterable[Queue], client_id: str, now_ms: int, attempt: str = ""
    ) -> set[Queue]:
        """Take or renew the locks of `queues`; returns the queues that `client_id` then holds."""
        held = self._groups.setdefault(group, {})
        mine: set[Queue] = set()
        for queue in queues:
            lock = held.get(queue)
            if lock is None and self.full:
                continue
            if lock is None or lock.expired(now_ms, self._lifetime_ms):
                weight = 1 + (len(group) + len(client_id) + self._names(queue)) // LONG
                self._count += weight - (0 if lock is None else lock.weight)
                held[queue] = _Lock(client_id, now_ms, attempt, weight)
                self.new_owners += 1
                mine.add(queue)
            elif lock.client_id == client_id:
                if lock.attempt != attempt:
                    lock.before = lock.renewed_ms, lock.attempt
                    lock.attempt = attempt
                lock.renewed_ms = now_ms
                mine.add(queue)
        if not held:
            del self._groups[group]
        return mine

    def undo(self, group: str, queues: Iterable[Queue], client_id: str, attempt: str) -> None:
        """Take back what `attempt` did to the locks of `queues`, except where there was a later one."""
        for queue, lock in self._held(group, queues, client_id):
            if lock.attempt != attempt:
                continue
            if lock.before is None:
                self._drop(group, queue)
            else:
                lock.renewed_ms, lock.attempt = lock.before
                lock.before = lock.before[0], ""

    def unlock(self, group: str, queues: Iterable[Queue], client_id: str, attempt: str | None = None) -> None:
        """Release the locks of `queues` that `client_id` holds; other clients keep theirs. With an `attempt`:
        only those that it took or renewed last."""
        for queue, lock in self._held(group, queues, client_id):
            if attempt is None or lock.attempt == attempt:
                self._drop(group, queue)

    def attempts(self, group: str, queues: Iterable[Queue], client_id: str) -> dict[str, list[Queue]]:
        """The queues that `client_id` holds, by the attempt that took or renewed them last."""
        found: dict[str, list[Queue]] = {}
        for queue, lock in self._held(group, queues, client_id):
            found.setdefault(lock.attempt, []).append(queue)
        return found

    def _held(self, group: str, queues: Iterable[Queue], client_id: str) -> list[tuple[Queue, _Lock]]:
        held = self._groups.get(group, {})
        locks = [(queue, held[queue]) for queue in queues if queue in held]
        return [(queue, lock) for queue, lock in locks if lock.client_id == client_id]

    def _drop(self, group: str, queue: Queue) -> None:
        held = self._groups.get(group, {})
        if (lock := held.pop(queue, None)) is not None:
            self._count -= lock.weight
        if not held:
            self._groups.pop(group, None)

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
            before = self._groups[group]
            held = {q: k for q, k in before.items() if not k.expired(now_ms, self._lifetime_ms)}
            self._count -= sum(k.weight for q, k in before.items() if q not in held)
            if held:
                self._groups[group] = held
            else:
                del self._groups[group]

    def __iter__(self) -> Iterator[tuple[str, str, list[Queue]]]:
        """Group, client id and queues of all locks, expired ones too."""
        for group, held in self._groups.items():
            clients: dict[str, list[Queue]] = {}
            for queue, lock in held.items():
                clients.setdefault(lock.client_id, []).append(queue)
            for client_id, queues in clients.items():
                yield group, client_id, queues
