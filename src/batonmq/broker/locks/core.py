"""Counts the votes of a broker set for queue locks. No I/O."""

from __future__ import annotations

from collections.abc import Collection, Hashable
from typing import Generic, TypeVar

Queue = TypeVar("Queue", bound=Hashable)


def quorum_of(total_replicas: int, known: int) -> int:
    """Number of replicas that must grant a lock: more than half of `totalReplicas`, or of the known replicas
    if there are more. Source: RocketMQ's `AdminBrokerProcessor.lockBatchMQ`."""
    return max(total_replicas, known) // 2 + 1


class LockRound(Generic[Queue]):
    """The answers of the replicas to one request for locks."""

    def __init__(self, queues: Collection[Queue], own: Collection[Queue], quorum: int, asked: int) -> None:
        """`asked` other replicas are asked for `queues`; this broker grants those in `own`."""
        self._quorum = quorum
        self._unanswered = asked
        self._votes = {queue: int(queue in own) for queue in queues}

    def answered(self, granted: Collection[Queue]) -> None:
        """A replica has answered; a failed one grants nothing. A queue that it names twice is one vote."""
        self._unanswered -= 1
        for queue in set(granted):
            if queue in self._votes:
                self._votes[queue] += 1

    @property
    def granted(self) -> set[Queue]:
        """The queues that enough replicas grant."""
        return {queue for queue, votes in self._votes.items() if votes >= self._quorum}

    @property
    def decided(self) -> bool:
        """Whether the result is certain."""
        return all(
            votes >= self._quorum or votes + self._unanswered < self._quorum for votes in self._votes.values()
        )
