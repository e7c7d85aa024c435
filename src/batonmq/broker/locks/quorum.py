"""Locks that more than half of the broker set grants (`lockInStrictMode`).

A slave that acts as master grants locks too. While the master returns, or while two parts of a cluster see
different masters, one client could hold a queue at the slave and another client at the master. With strict
locks the broker that gets a request asks all other replicas.

- If too few replicas grant a lock, it is released everywhere at once. In RocketMQ it stays until it expires.
- A replica writes new owners to ``config/queueLocks.json`` before it grants: after a restart it does not
  grant the same queue to another client. A RocketMQ replica loses its locks.
- A late unlock does not release a lock that was granted after it was sent.

Source: RocketMQ's `AdminBrokerProcessor.lockBatchMQ` and `unlockBatchMQ`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from typing import TYPE_CHECKING, Final

from batonmq.broker.locks.core import LockRound, quorum_of
from batonmq.broker.tables.locks import MOST_LOCKS
from batonmq.common.repeated_warnings import RepeatedWarnings
from batonmq.common.tasks import Tasks
from batonmq.net.errors import NetError
from batonmq.protocol.bodies.clients import LockAttemptBody, LockBatchResponseBody, UnlockAttemptBody
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.clients import LockBatchMq, UndoQueueLocks, UnlockBatchMq
from batonmq.protocol.json import decode, encode

if TYPE_CHECKING:
    from batonmq.broker.context import Broker
    from batonmq.protocol.bodies.common import MessageQueue

log = logging.getLogger(__name__)

CALL_TIMEOUT_MS: Final = 1_000
"""How long another replica may take to answer, as in RocketMQ."""


class LockQuorum:
    """Locks and unlocks queues of this broker set."""

    def __init__(self, broker: Broker, durable: Callable[[], Awaitable[None]]) -> None:
        """`durable` writes new owners to disk, and raises `MQError` on failure."""
        self._broker = broker
        self._durable = durable
        self._stored = 0
        """`LockTable.new_owners` at the last write to disk."""
        self._tasks = Tasks()
        self._warnings = RepeatedWarnings(log)

    async def stop(self) -> None:
        await self._tasks.cancel()

    def _warn(self, address: str, text: str) -> None:
        self._warnings.warn(address, text, self._broker.clock.monotonic_ms())

    async def lock(self, asked: LockAttemptBody) -> Collection[MessageQueue]:
        """Lock queues; returns those of the request that the client now holds. Raises `MQError` if the disk
        fails."""
        broker = self._broker
        strict = broker.settings.broker.lock_in_strict_mode
        if not strict:
            return self._own(asked)
        if asked.only_this_broker:
            return await self._durably(asked)
        total = broker.settings.broker.total_replicas
        others = self._others()
        quorum = quorum_of(total, 1 + len(others))
        if quorum > 1 + len(others):
            self._warn(
                broker.address,
                f"cannot lock queues of group {asked.consumer_group}: {quorum} replicas must agree, and only "
                f"{1 + len(others)} are alive",
            )
            return ()
        asked.attempt = f"{broker.rng.getrandbits(64):016x}"
        mine = await self._durably(asked)
        if quorum == 1 or (not mine and len(others) < quorum):
            return mine
        return await self._ask(asked, mine, others, quorum)

    def _others(self) -> dict[int, str]:
        """The other replicas. One that has changed its id may be listed twice for a while, and votes once."""
        broker = self._broker
        others = broker.members.others(broker.settings.broker.broker_id)
        by_address = {address: id for id, address in others.items() if address != broker.address}
        return {id: address for address, id in by_address.items()}

    def _own(self, asked: LockAttemptBody) -> set[MessageQueue]:
        locks, now_ms = self._broker.tables.locks, self._broker.clock.monotonic_ms()
        mine = locks.try_lock(asked.consumer_group, asked.mq_set, asked.client_id, now_ms, asked.attempt)
        if locks.full:
            self._warn(self._broker.address, f"no more queues are locked: {MOST_LOCKS} are")
        return mine

    async def _durably(self, asked: LockAttemptBody) -> set[MessageQueue]:
        mine = self._own(asked)
        owners = self._broker.tables.locks.new_owners
        if owners > self._stored:
            try:
                await self._durable()
            except MQError:
                self._undo(asked, mine)
                raise
            self._stored = max(self._stored, owners)
        return mine

    async def _ask(
        self, asked: LockAttemptBody, mine: set[MessageQueue], others: dict[int, str], quorum: int
    ) -> Collection[MessageQueue]:
        """Ask the other replicas; returns as soon as the result is certain.

        It also asks for queues that this broker refuses: a master that returns may still have the lock of a
        client that has released it meanwhile. RocketMQ asks only for queues that it grants itself."""
        votes: LockRound[MessageQueue] = LockRound(set(asked.mq_set), mine, quorum, len(others))
        body = LockAttemptBody(asked.consumer_group, asked.client_id, True, list(asked.mq_set), asked.attempt)
        decided = asyncio.get_running_loop().create_future()
        self._tasks.spawn(self._collect(body, votes, others, decided))
        await asyncio.shield(decided)
        granted = votes.granted
        self._undo(asked, mine - granted)
        return granted

    async def _collect(
        self,
        body: LockAttemptBody,
        votes: LockRound[MessageQueue],
        others: dict[int, str],
        decided: asyncio.Future[None],
    ) -> None:
        """Collect all answers, and release locks that too few replicas have granted."""
        data = encode(body)

        async def ask(address: str) -> None:
            votes.answered(await self._vote_of(address, data, body.consumer_group))
            if votes.decided and not decided.done():
                decided.set_result(None)

        try:
            await asyncio.gather(*(ask(address) for address in others.values()))
        finally:
            if not decided.done():
                decided.set_result(None)
        refused = [queue for queue in body.mq_set if queue not in votes.granted]
        if refused:
            # Also at replicas that did not answer: they may have granted a lock.
            body.mq_set = refused
            await asyncio.gather(*(self._take_back(address, encode(body)) for address in others.values()))

    async def _vote_of(self, address: str, body: bytes, group: str) -> Collection[MessageQueue]:
        try:
            answer = await self._broker.client.call(address, LockBatchMq(), body, timeout_ms=CALL_TIMEOUT_MS)
            return decode(answer.body, LockBatchResponseBody).lock_ok_mq_set
        except (NetError, MQError) as error:
            self._warn(address, f"grants no queue locks to group {group}: {error}")
            return ()

    async def _take_back(self, address: str, body: bytes) -> None:
        try:
            await self._broker.client.oneway(address, UndoQueueLocks(), body)
        except NetError as error:
            log.debug("queue locks at %s expire: %s", address, error)

    def _undo(self, asked: LockAttemptBody, queues: Collection[MessageQueue]) -> None:
        self._broker.tables.locks.undo(asked.consumer_group, queues, asked.client_id, asked.attempt)

    def undo(self, asked: LockAttemptBody) -> None:
        """Another replica takes back the effect of its request here."""
        if asked.attempt:
            self._undo(asked, asked.mq_set)

    async def unlock(self, asked: UnlockAttemptBody) -> None:
        """Release queues here, and with strict locks at the other replicas. At a replica that does not answer
        they stay until they expire."""
        broker, locks = self._broker, self._broker.tables.locks
        group, client_id = asked.consumer_group, asked.client_id
        attempts = locks.attempts(group, asked.mq_set, client_id)
        locks.unlock(group, asked.mq_set, client_id, asked.attempt)
        if asked.only_this_broker or not broker.settings.broker.lock_in_strict_mode:
            return
        others = self._others()
        await asyncio.gather(
            *(
                self._unlock_at(address, UnlockAttemptBody(group, client_id, True, queues, attempt))
                for attempt, queues in attempts.items()
                for address in others.values()
            )
        )

    async def _unlock_at(self, address: str, body: UnlockAttemptBody) -> None:
        try:
            await self._broker.client.call(address, UnlockBatchMq(), encode(body), timeout_ms=CALL_TIMEOUT_MS)
        except (NetError, MQError) as error:
            self._warn(
                address, f"keeps queue locks of group {body.consumer_group} until they expire: {error}"
            )
