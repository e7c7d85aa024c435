"""Reads that wait until a node's state machine shows all that was committed before they came (6.4).

All reads of one turn share one request to the core. Its answer is an index, and they wait on until that much
is applied.
"""

from __future__ import annotations

import asyncio
from typing import TypeAlias

from batonmq.raft.applier import Applier
from batonmq.raft.config import RaftConfig
from batonmq.raft.core import RaftCore
from batonmq.raft.errors import NodeStopped, NotLeader, ReadUnavailable, ReplicaLagging
from batonmq.raft.proposals import fail
from batonmq.raft.state import Role

Waiting: TypeAlias = list[asyncio.Future[None]]


class Barriers:
    """The waiting reads by what they wait for.

    ``first_number`` must be larger than any number before a restart: a leader's answer to a request of that
    time could pass for the answer to a new one.
    """

    def __init__(self, first_number: int) -> None:
        self.number = first_number
        """Of the last request."""
        self.unasked: Waiting = []
        """Those of this turn."""
        self._asked: dict[int, Waiting] = {}
        self.held: list[tuple[int, int, Waiting]] = []
        """(number of their request, index, reads) that wait until the index is applied."""

    def add(self, future: asyncio.Future[None]) -> None:
        self.unasked.append(future)

    def ask(self) -> int | None:
        """The number of one request for all reads since the last; None if there are none."""
        if not self.unasked:
            return None
        self.number += 1
        self._asked[self.number], self.unasked = self.unasked, []
        return self.number

    def answered(self, number: int) -> Waiting:
        """The reads of this request; none if they gave up. Those that may go on are given to ``hold``."""
        return self._asked.pop(number, [])

    def hold(self, number: int, index: int, waiting: Waiting) -> None:
        """The reads of this request return once ``index`` is applied."""
        self.held.append((number, index, waiting))

    def applied(self, index: int) -> None:
        """All up to ``index`` is applied."""
        if not self.held:
            return
        later: list[tuple[int, int, Waiting]] = []
        for each in self.held:
            if each[1] > index:
                later.append(each)
                continue
            for future in each[2]:
                if not future.done():
                    future.set_result(None)
        self.held = later

    def expire(self, number: int) -> Waiting:
        """The time of this request's reads is up; those that still wait."""
        late = self._asked.pop(number, [])
        for each in self.held:
            if each[0] == number:
                late += each[2]
        if late:
            self.held = [each for each in self.held if each[0] != number]
        return late

    def give_up(self) -> Waiting:
        """All that wait for anything; the caller fails them."""
        everyone = [*self.unasked]
        for waiting in self._asked.values():
            everyone += waiting
        for _, _, waiting in self.held:
            everyone += waiting
        self.unasked, self._asked, self.held = [], {}, []
        return everyone


class ReadBarriers:
    """The read barriers of one running node: between its callers, its core and its state machine."""

    def __init__(self, core: RaftCore, config: RaftConfig, applier: Applier, *, first_number: int) -> None:
        self._core = core
        self._config = config
        self._applier = applier
        self._loop = asyncio.get_running_loop()
        self.barriers = Barriers(first_number)

    def add(self) -> asyncio.Future[None]:
        """A new read, which is asked for in the next turn. Raises NotLeader or ReplicaLagging. The future
        fails with one of these, or with ReadUnavailable after ``read_timeout_ms``."""
        core = self._core
        if core.leader_id is None:
            raise NotLeader(None)
        if self._lags_behind(core.commit_index):
            raise ReplicaLagging(f"{core.commit_index - self._applier.index} entries behind")
        future: asyncio.Future[None] = self._loop.create_future()
        self.barriers.add(future)
        return future

    def ask(self, now_ms: int) -> None:
        """Ask the core for the reads of this turn."""
        number = self.barriers.ask()
        if number is not None:
            self._core.read(number, now_ms)
            self._loop.call_later(self._config.read_timeout_ms / 1000, self._expire, number)

    def _expire(self, number: int) -> None:
        late = self.barriers.expire(number)
        if late:
            self._core.reads.forget(number)
            fail(late, ReadUnavailable("no quorum confirmed the read in time"))

    def answered(self, number: int, index: int | None) -> None:
        """The core's answer: the index that the reads must see, or None if it refuses them."""
        waiting = self.barriers.answered(number)
        if index is None:
            fail(waiting, NotLeader(self._core.leader_id))
        elif self._lags_behind(index):
            # Only the leader's answer shows how far a follower is behind that was cut off.
            fail(waiting, ReplicaLagging(f"{index - self._applier.index} entries behind"))
        else:
            self.barriers.hold(number, index, waiting)

    def _lags_behind(self, index: int) -> bool:
        """Whether a read that must see ``index`` had better go to the leader (``max_read_lag``)."""
        most, behind = self._config.max_read_lag, index - self._applier.index
        return 0 < most < behind and self._core.role is not Role.LEADER

    def stop(self, cause: BaseException) -> None:
        """The node has stopped."""
        fail(self.barriers.give_up(), NodeStopped("the node has stopped"), cause)
