"""Consistent reads: all of one loop turn share one barrier of the log.

The barrier is a ReadIndex, the leader's lease, or on a follower the leader's index and the wait to reach it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Protocol, TypeAlias

from batonmq.controller.effects import Outcome
from batonmq.controller.proposer import NOT_LEADER
from batonmq.protocol.codes import ResponseCode
from batonmq.raft.errors import NodeStopped, NotLeader, RaftError, ReplicaLagging

log = logging.getLogger(__name__)

PIPELINE: Final = 2
"""Barriers under way at once."""
MIN_BATCH: Final = 32
"""Reads that begin another barrier while one is under way. On all three controllers together a barrier costs
as much processor time as some 30 reads."""

Callback: TypeAlias = Callable[[Outcome | None], None]


class ReadLog(Protocol):
    """The part of `RaftNode` that this module needs."""

    async def read_index(self) -> None: ...


class Reads:
    """`submit` a function, which may read the state machine once it shows all that was committed before."""

    def __init__(self, node: ReadLog) -> None:
        self._node = node
        self._loop = asyncio.get_running_loop()
        self._waiting: list[Callback] = []
        self._scheduled = False
        self._tasks: set[asyncio.Task[None]] = set()

    def submit(self, callback: Callback) -> None:
        """`callback` gets None, and may read, or why it must not."""
        self._waiting.append(callback)
        self._arm()

    async def close(self) -> None:
        """Waits for barriers under way; the log itself must have been stopped."""
        while self._tasks or self._waiting:
            self._flush()
            await asyncio.gather(*self._tasks)

    def _arm(self) -> None:
        under_way = len(self._tasks)
        if self._scheduled or under_way >= PIPELINE or (under_way and len(self._waiting) < MIN_BATCH):
            return
        self._scheduled = True
        self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._scheduled = False
        if not self._waiting:
            return
        batch, self._waiting = self._waiting, []
        self._tasks.add(self._loop.create_task(self._read(batch)))

    async def _read(self, batch: list[Callback]) -> None:
        refusal: Outcome | None = None
        try:
            await self._node.read_index()
        except (NotLeader, NodeStopped):
            refusal = NOT_LEADER
        except ReplicaLagging as error:
            refusal = Outcome(code=NOT_LEADER.code, remark=f"this controller lags behind: {error}")
        except RaftError as error:
            refusal = Outcome(code=int(ResponseCode.CONTROLLER_JRAFT_INTERNAL_ERROR), remark=str(error))
        task = asyncio.current_task()
        assert task is not None
        self._tasks.discard(task)
        if self._waiting:
            self._arm()
        for callback in batch:
            try:
                callback(refusal)
            except Exception:
                # One request's bug must not keep the others from their answers.
                log.exception("answering a read failed")
