"""Requests of the exactly-once sink's driver to the brokers."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self

from batonmq.client.errors import NotSafelyStored, SendFailed
from batonmq.client.half_producer import Half
from batonmq.client.hooks import TransactionState
from batonmq.client.message import Message
from batonmq.net.errors import CallTimeout, ConnectFailed, ConnectionLost, NetError
from batonmq.protocol.bodies.common import MessageQueue
from batonmq.protocol.bodies.transactions import TransactionEnd
from batonmq.protocol.codes import MessageSysFlag, ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.names import TRANS_HALF_TOPIC
from batonmq.spark.sink.encode import MARK_PROPERTY
from batonmq.spark.sink.exactly_once.core import MOST_UNITS, Mark, Unit
from batonmq.spark.sink.exactly_once.prepare import half_producer
from batonmq.spark.sink.exactly_once.settle import NotSupported
from batonmq.spark.sink.options import SinkOptions
from batonmq.spark.tls import tls_context

log = logging.getLogger(__name__)

CALL_MS: Final = 10_000
"""How long one request to a broker may take; then it counts as failed and is repeated."""
CONFIRM_MS: Final = 5_000
SETTLE_S: Final = 5.0
"""How long a RocketMQ broker may still carry out an end that got no answer: its queue drops requests that are
3 s old (`waitTimeMillsInTransactionQueue`)."""
INDEX_POLL_S: Final = 0.02
_COMMIT: Final = int(MessageSysFlag.TRANSACTION_COMMIT)
_MASK: Final = int(MessageSysFlag.TRANSACTION_MASK)


class BrokerCluster:
    """`settle.Cluster` over sockets; an asynchronous context manager."""

    def __init__(self, options: SinkOptions, mark: Mark) -> None:
        self._mark = mark
        self._producer = half_producer(options, mark, tls_context(options.tls))
        self._unsure_since: dict[str, float] = {}
        """Broker set -> when an end had no answer (loop time)."""
        self._indexed: dict[str, tuple[float, str]] = {}
        """Broker set -> time up to which its index is complete, and its master then."""
        self._locks: dict[str, asyncio.Lock] = {}

    async def __aenter__(self) -> Self:
        await self._producer.start()
        self._started_at = asyncio.get_running_loop().time()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._producer.close()

    # -- ends

    async def commit_many(self, units: Sequence[Unit]) -> str:
        try:
            return await self._end_many(units, TransactionState.COMMIT)
        except (NetError, MQError):
            self._unsure(units[0].broker)
            raise

    async def commit(self, unit: Unit) -> str:
        try:
            return await self._producer.end(
                unit.broker, unit.topic, _end(unit), TransactionState.COMMIT, CALL_MS
            )
        except (NetError, MQError):
            self._unsure(unit.broker)
            raise

    async def roll_back(self, units: Sequence[Unit]) -> None:
        by_broker: dict[str, list[Unit]] = {}
        for unit in units:
            by_broker.setdefault(unit.broker, []).append(unit)
        for broker, listed in by_broker.items():
            try:
                for at in range(0, len(listed), MOST_UNITS):
                    await self._end_many(listed[at : at + MOST_UNITS], TransactionState.ROLLBACK)
            except (NotSupported, NetError, MQError) as error:
                log.info("half messages of %s are left to its checks: %s", broker, error)

    async def _end_many(self, units: Sequence[Unit], state: TransactionState) -> str:
        first = units[0]
        try:
            return await self._producer.end_many(
                first.broker, first.topic, [_end(unit) for unit in units], state, CALL_MS
            )
        except MQError as error:
            if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise NotSupported(first.broker) from None
            raise

    def _unsure(self, broker: str) -> None:
        self._unsure_since[broker] = asyncio.get_running_loop().time()

    # -- look-ups, for brokers that deliver a message again if its commit is repeated

    async def confirm(self, unit: Unit) -> str:
        return (await self._barrier(unit))[0]

    async def look_up(self, unit: Unit) -> str | None:
        indexed_at = await self._index_is_complete(unit)
        address, found = await self._producer.messages_of_id(
            unit.broker, unit.topic, unit.topic, unit.key, CALL_MS
        )
        if address != indexed_at:
            raise ConnectFailed(unit.broker, "has another master now")
        committed = any(
            record.sys_flag & _MASK == _COMMIT
            and record.prepared_transaction_offset == unit.commit_log_offset
            for record in found
        )
        return address if committed else None

    async def _index_is_complete(self, unit: Unit) -> str:
        """Wait until the broker set's index has everything that earlier ends can have stored; returns the
        address of its master."""
        loop, broker = asyncio.get_running_loop(), unit.broker
        async with self._locks.setdefault(broker, asyncio.Lock()):
            unsure_since = self._unsure_since.get(broker, self._started_at)
            until, address = self._indexed.get(broker, (-1.0, ""))
            if until >= unsure_since + SETTLE_S and address == await self._producer.master(
                broker, unit.topic
            ):
                return address
            await asyncio.sleep(max(0.0, unsure_since + SETTLE_S - loop.time()))
            began = loop.time()
            address, half = await self._barrier(unit)
            deadline = loop.time() + CALL_MS / 1000
            while True:
                where, found = await self._producer.messages_of_id(
                    broker, unit.topic, TRANS_HALF_TOPIC, half.message_id, CALL_MS
                )
                if where != address:
                    raise ConnectFailed(broker, "has another master now")
                if found:
                    break
                if loop.time() > deadline:
                    raise CallTimeout(address, "its index does not follow; is messageIndexEnable=true?")
                await asyncio.sleep(INDEX_POLL_S)
            self._indexed[broker] = began, address
            return address

    async def _barrier(self, unit: Unit) -> tuple[str, Half]:
        """Store a half message and roll it back. A broker acknowledges it once its replicas have it and
        everything before it in the log. Returns the address of the master, and the half message."""
        producer, broker = self._producer, unit.broker
        before = await producer.master(broker, unit.topic)
        queue = MessageQueue(unit.topic, broker, unit.queue_id)
        message = Message(unit.topic, b"barrier", properties={"barrier": uuid.uuid4().hex})
        try:
            half = await producer.prepare(
                message, {MARK_PROPERTY: self._mark.text()}, queue=queue, timeout_ms=CONFIRM_MS
            )
        except NotSafelyStored as error:
            raise ConnectionLost(before, f"its replicas do not follow: {error}") from None
        except SendFailed as error:
            raise CallTimeout(before, str(error)) from None
        try:
            end = half.end()
            await producer.end(broker, unit.topic, end, TransactionState.ROLLBACK, CALL_MS)
        except (NetError, MQError) as error:
            log.debug("the barrier at %s is left to its checks: %s", broker, error)
        if await producer.master(broker, unit.topic) != before:
            raise ConnectFailed(broker, "has another master now")
        return before, half


def _end(unit: Unit) -> TransactionEnd:
    return TransactionEnd(unit.half_offset, unit.commit_log_offset, unit.key)
