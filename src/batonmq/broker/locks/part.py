"""The part for queue locks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from batonmq.broker.locks.quorum import LockQuorum
from batonmq.broker.part import Part
from batonmq.broker.requests import required_body
from batonmq.broker.tables.persistence import Table
from batonmq.common.files import reason
from batonmq.net.dispatch import Dispatcher, Reply, Request
from batonmq.protocol.bodies.clients import (
    HeldLocks,
    LockAttemptBody,
    LockBatchResponseBody,
    QueueLocksFile,
    UnlockAttemptBody,
)
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.clients import LockBatchMq, UndoQueueLocks, UnlockBatchMq
from batonmq.protocol.json import decode, encode

if TYPE_CHECKING:
    from batonmq.broker.context import Broker

LOCKS = "queueLocks"
MAX_NAME: Final = 1_024
"""Characters of a topic, group, broker or client id in a lock."""
MAX_ATTEMPT: Final = 64
"""The same of an attempt; a broker's has 16."""


class LocksPart(Part):
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.quorum = LockQuorum(broker, self._written)

    def tables(self) -> Sequence[Table]:
        return (Table(name=LOCKS, encode=self._encode, restore=self._restore),)

    def handlers(self, dispatcher: Dispatcher) -> None:
        dispatcher.on(LockBatchMq, self._lock)
        dispatcher.on(UnlockBatchMq, self._unlock)
        dispatcher.on(UndoQueueLocks, self._undo)

    async def stop(self) -> None:
        await self.quorum.stop()

    async def _lock(self, request: Request, header: LockBatchMq) -> Reply:
        asked = required_body(request, LockAttemptBody)
        names = [asked.consumer_group, asked.client_id]
        names += [name for queue in asked.mq_set for name in (queue.topic, queue.broker_name)]
        if any(len(name) > MAX_NAME for name in names):  # they are kept
            raise MQError(ResponseCode.INVALID_PARAMETER, f"a name of more than {MAX_NAME} characters")
        if len(asked.attempt) > MAX_ATTEMPT:
            raise MQError(ResponseCode.INVALID_PARAMETER, f"an attempt of more than {MAX_ATTEMPT} characters")
        locked = await self.quorum.lock(asked)
        return Reply(
            body=encode(LockBatchResponseBody(lock_ok_mq_set=[q for q in asked.mq_set if q in locked]))
        )

    async def _unlock(self, request: Request, header: UnlockBatchMq) -> Reply:
        await self.quorum.unlock(required_body(request, UnlockAttemptBody))
        return Reply()

    def _undo(self, request: Request, header: UndoQueueLocks) -> Reply:
        self.quorum.undo(required_body(request, LockAttemptBody))
        return Reply()

    async def _written(self) -> None:
        persistence = self._broker.tables.persistence
        persistence.save(LOCKS)
        try:
            await persistence.written()
        except OSError as error:
            raise MQError(ResponseCode.SYSTEM_ERROR, f"the lock cannot be stored: {reason(error)}") from error

    def _encode(self) -> bytes:
        """Only strict locks survive a restart. Without strict mode RocketMQ's clients expect free queues
        after it."""
        locks = self._broker.tables.locks if self._broker.settings.broker.lock_in_strict_mode else ()
        return encode(QueueLocksFile(locks=[HeldLocks(*lock) for lock in locks]))

    def _restore(self, data: bytes) -> None:
        """Restored locks last as long as new ones: their owners may have renewed them just before the
        restart."""
        if not self._broker.settings.broker.lock_in_strict_mode:
            return
        now_ms = self._broker.clock.monotonic_ms()
        for held in decode(data, QueueLocksFile).locks:
            self._broker.tables.locks.try_lock(held.consumer_group, held.mq_set, held.client_id, now_ms)
