"""The driver's side of a batch: decides it, ends its half messages, and records that. Opens no sockets.

`Cluster` is the interface to the brokers; the tests replace it by a model that loses answers and masters.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final, Protocol

from batonmq.net.errors import NetError
from batonmq.protocol.errors import MQError
from batonmq.spark.options import ClearError
from batonmq.spark.sink.exactly_once.core import Action, Ends, Kind, Unit

log = logging.getLogger(__name__)

PAUSE_S: Final = 0.05
"""Pause after a failure; it doubles up to `MOST_PAUSE_S`."""
MOST_PAUSE_S: Final = 1.0


class NotSupported(Exception):
    """The master does not know END_TRANSACTIONS: it is a RocketMQ broker, or an older build."""


class NotEnded(ClearError):
    """A decided batch is not delivered yet; the text has the next step."""


class Cluster(Protocol):
    """Requests to the masters of broker sets. They raise `NetError` and `MQError`."""

    async def commit_many(self, units: Sequence[Unit]) -> str:
        """Commit half messages of one broker set; returns its master's address. Raises `NotSupported`."""

    async def commit(self, unit: Unit) -> str:
        """Commit one half message; returns the address of the master."""

    async def look_up(self, unit: Unit) -> str | None:
        """Address of the master that has the committed message. None if it was not committed, and no earlier
        request can still commit it."""

    async def confirm(self, unit: Unit) -> str:
        """Address of the master of the unit's broker set, once the replicas have everything it
        acknowledged."""

    async def roll_back(self, units: Sequence[Unit]) -> None:
        """Roll half messages back, if their brokers answer. The brokers check the others."""


class Decisions(Protocol):
    """The ledger (`ledger.Ledger`)."""

    def is_done(self, epoch: int) -> bool: ...
    def decided(self, epoch: int) -> list[Unit] | None: ...
    def unfinished(self) -> list[int]: ...
    def decide(self, epoch: int, units: list[Unit]) -> None: ...
    def finish(self, epoch: int) -> None: ...


async def commit_batch(
    ledger: Decisions, cluster: Cluster, epoch: int, units: list[Unit], *, timeout_s: float
) -> None:
    """Make a batch visible, once. Other half messages are rolled back.

    `units`: the half messages of the attempts that Spark has accepted. If the batch was decided before, the
    first decision holds. Raises `NotEnded` if brokers do not answer within `timeout_s`; then call it again.
    """
    for earlier in ledger.unfinished():
        if earlier < epoch:
            await _end(ledger, cluster, earlier, fresh=False, timeout_s=timeout_s)
    decided = ledger.decided(epoch)
    fresh = decided is None and not ledger.is_done(epoch)
    if fresh:
        ledger.decide(epoch, units)
    else:
        counting = {unit.key for unit in decided or ()}
        await cluster.roll_back([unit for unit in units if unit.key not in counting])
    if not ledger.is_done(epoch):
        await _end(ledger, cluster, epoch, fresh=fresh, timeout_s=timeout_s)


async def abort_batch(ledger: Decisions, cluster: Cluster, epoch: int, units: list[Unit]) -> None:
    """Roll back the half messages of a failed batch. A decided batch stays decided and is delivered later."""
    if ledger.is_done(epoch):
        return
    decided = {unit.key for unit in ledger.decided(epoch) or ()}
    left_over = [unit for unit in units if unit.key not in decided]
    if left_over:
        await cluster.roll_back(left_over)


async def _end(ledger: Decisions, cluster: Cluster, epoch: int, *, fresh: bool, timeout_s: float) -> None:
    units = ledger.decided(epoch)
    assert units is not None
    if units:
        if not fresh:
            log.info("batch %d was decided before: %d half messages are to be ended", epoch, len(units))
        await _Settling(Ends(units, fresh=fresh), cluster, epoch, timeout_s).run()
    ledger.finish(epoch)


class _Settling:
    """Carries out the actions of `Ends` until all half messages are ended."""

    def __init__(self, ends: Ends, cluster: Cluster, epoch: int, timeout_s: float) -> None:
        self._ends, self._cluster, self._epoch = ends, cluster, epoch
        self._timeout_s = timeout_s
        self._pauses: dict[str, float] = {}
        """Broker set -> pause after its next failure, s."""
        self._failure: Exception | None = None

    async def run(self) -> None:
        """Raises `NotEnded`."""
        ends = self._ends
        tasks: set[asyncio.Task[None]] = set()
        loop = asyncio.get_running_loop()
        progress_at, left = loop.time(), ends.left
        try:
            while not ends.finished:
                tasks |= {loop.create_task(self._carry_out(action)) for action in ends.ready()}
                left_s = progress_at + self._timeout_s - loop.time()
                done, tasks = await asyncio.wait(
                    tasks, timeout=max(0.0, left_s), return_when=asyncio.FIRST_COMPLETED
                )
                for task in done:
                    task.result()
                if ends.left < left:
                    progress_at, left = loop.time(), ends.left
                elif loop.time() - progress_at > self._timeout_s:
                    reason = str(self._failure or "no answer").splitlines()[0]
                    raise NotEnded(
                        f"batch {self._epoch} is decided, but {ends.left} of its {len(ends.units)} half "
                        f"messages are not delivered yet: {reason}; start the query "
                        "again with the same checkpoint: it continues with them"
                    ) from self._failure
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _carry_out(self, action: Action) -> None:
        ends, cluster = self._ends, self._cluster
        try:
            if action.kind is Kind.END_MANY:
                address = await cluster.commit_many([ends.units[number] for number in action.units])
                ends.done(action, address)
            elif action.kind is Kind.END:
                ends.done(action, await cluster.commit(ends.units[action.units[0]]))
            elif action.kind is Kind.LOOK_UP:
                found_at = await cluster.look_up(ends.units[action.units[0]])
                if found_at is None:
                    ends.absent(action)
                else:
                    ends.found(action, found_at)
            else:
                unit = next(unit for unit in ends.units if unit.broker == action.broker)
                ends.confirmed(action, await cluster.confirm(unit))
            self._pauses.pop(action.broker, None)
        except NotSupported as error:
            await self._pause(action, error)
            ends.unsupported(action)
        except NetError as error:
            await self._pause(action, error)
            ends.failed(action, maybe_done=error.sent)
        except MQError as error:
            await self._pause(action, error)
            ends.failed(action, maybe_done=True)

    async def _pause(self, action: Action, error: Exception) -> None:
        if not isinstance(error, NotSupported):
            self._failure = error
        pause_s = self._pauses.get(action.broker, 0.0 if isinstance(error, NotSupported) else PAUSE_S)
        self._pauses[action.broker] = min(MOST_PAUSE_S, max(PAUSE_S, 2 * pause_s))
        await asyncio.sleep(pause_s)
