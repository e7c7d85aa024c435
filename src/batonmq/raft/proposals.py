"""Proposals of one node whose callers wait: until they are appended, and then until they are applied."""

from __future__ import annotations

import asyncio
from typing import TypeAlias

from batonmq.raft.errors import NodeStopped, ProposalUncertain, RaftError

Caller: TypeAlias = asyncio.Future[object]


def fail(
    futures: list[Caller] | list[asyncio.Future[None]], error: RaftError, cause: BaseException | None = None
) -> None:
    """Raise ``error`` in all callers that still wait."""
    error.__cause__ = cause
    for future in futures:
        if not future.done():
            future.set_exception(error)


class Proposals:
    def __init__(self) -> None:
        self.queued: list[tuple[bytes, Caller]] = []
        """To be appended in the next turn, together."""
        self.appended: dict[int, tuple[int, Caller]] = {}
        """Index -> the term in which the entry was appended, and who waits for its result."""

    def take_queued(self) -> list[tuple[bytes, Caller]]:
        queued, self.queued = self.queued, []
        return queued

    def give_up(self, term: int) -> None:
        """Fail those of ``term`` and before: the node no longer leads, and has waited long enough."""
        stale = [index for index, (appended_in, _) in self.appended.items() if appended_in <= term]
        self._fail_appended(stale, "leadership was lost before the outcome was known")

    def covered(self, index: int) -> None:
        """A snapshot of the leader replaced the entries up to ``index``: nobody knows their results."""
        covered = [each for each in self.appended if each <= index]
        self._fail_appended(covered, "a snapshot of the leader hides the outcome")

    def _fail_appended(self, indexes: list[int], why: str) -> None:
        fail([self.appended.pop(index)[1] for index in indexes], ProposalUncertain(why))

    def stop(self, cause: BaseException) -> None:
        """The node has stopped."""
        fail([future for _, future in self.take_queued()], NodeStopped("the node has stopped"), cause)
        fail(
            [future for _, future in self.appended.values()],
            ProposalUncertain("the node stopped before the outcome was known"),
            cause,
        )
        self.appended.clear()
