"""Transactional messages: a message is delivered if, and only if, a local transaction is committed.

The message is stored as a half message that consumers do not see. Then the local transaction runs, and its
outcome commits the message or rolls it back. When the producer is gone before that, or the outcome does not
arrive, the broker asks a producer of the group what became of the transaction.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from types import TracebackType
from typing import Any, Self, TypeAlias

from batonmq.client.delivery import Selector
from batonmq.client.errors import NotSafelyStored, TransactionUnconfirmed
from batonmq.client.hooks import TransactionEnd, TransactionState, report_end
from batonmq.client.message import Message, SendResult
from batonmq.client.producer import Producer
from batonmq.net.connection import Connection
from batonmq.net.dispatch import Request
from batonmq.net.errors import ConnectFailed, NetError
from batonmq.protocol.bodies.common import MessageQueue
from batonmq.protocol.codes import MessageSysFlag, ResponseCode
from batonmq.protocol.compression import CompressionError
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.send import EndTransaction
from batonmq.protocol.headers.client import CheckTransactionState
from batonmq.protocol.message.errors import MessageFormatError
from batonmq.protocol.message.ids import decode_message_id
from batonmq.protocol.message.properties import (
    PROPERTY_PRODUCER_GROUP,
    PROPERTY_TRANSACTION_PREPARED,
    PROPERTY_UNIQUE_KEY,
)
from batonmq.protocol.message.record import MessageExt, decode_record
from batonmq.routing.session import OUTAGE_POLL_S

log = logging.getLogger(__name__)

Check: TypeAlias = "Callable[[MessageExt], Awaitable[TransactionState] | TransactionState]"
"""Says what became of the transaction of a half message; `MessageExt.message_id` is the transaction's id."""

MAX_DECISIONS = 10_000
"""Decisions that no broker has confirmed, kept for their checks; the oldest are forgotten first."""
SETTLED_S = 10.0
"""A broker that asks about a transaction so soon after it was ended is late with its own record of that
(`transactionOpBatchInterval`). A second commit would deliver the message twice, so the answer is UNKNOWN."""
MAX_CHECKS = 1_000
"""Checks that wait for an answer; brokers repeat those that are dropped."""

COMMIT_OR_ROLLBACK = {
    TransactionState.COMMIT: MessageSysFlag.TRANSACTION_COMMIT,
    TransactionState.ROLLBACK: MessageSysFlag.TRANSACTION_ROLLBACK,
    TransactionState.UNKNOWN: MessageSysFlag.TRANSACTION_NOT_TYPE,
}
_AGAIN = frozenset(
    {
        int(ResponseCode.SYSTEM_ERROR),  # for one, a new master does not show the half message yet
        int(ResponseCode.SYSTEM_BUSY),
        int(ResponseCode.SLAVE_NOT_AVAILABLE),
        int(ResponseCode.SERVICE_NOT_AVAILABLE),
        int(ResponseCode.FLOW_CONTROL),
        int(ResponseCode.GO_AWAY),
    }
)


class TransactionProducer(Producer):
    """A producer whose messages can depend on local transactions.

        async def check(message):
            return TransactionState.COMMIT if await paid(message.keys[0]) else TransactionState.ROLLBACK

        async with TransactionProducer("orders", namesrv, check=check) as producer:
            async with producer.transaction(Message("paid-orders", b"…", keys="17")):
                await pay(17)

    Args:
        check: says what became of a transaction when a broker asks for it, about a half message of any
            producer of this group: a function or a coroutine function. Until it knows, it answers UNKNOWN;
            the broker asks again (`transactionCheckMax` times), then gives the message up. An exception
            counts as UNKNOWN.
        check_concurrency: calls of ``check`` at the same time.
        end_timeout_ms: how long a commit or rollback may take, a change of the master included.

    The other arguments are those of `Producer`. All producers of a group must be able to answer for each
    other.
    """

    def __init__(
        self,
        group: str,
        namesrv: str | Iterable[str],
        *,
        check: Check,
        check_concurrency: int = 16,
        end_timeout_ms: int = 3_000,
        **options: Any,
    ) -> None:
        super().__init__(group, namesrv, **options)
        self._check = check
        self._end_timeout_ms = end_timeout_ms
        self._slots = asyncio.Semaphore(check_concurrency)
        self._checks: set[asyncio.Task[None]] = set()
        self._decisions: OrderedDict[str, TransactionState] = OrderedDict()
        self._settled: OrderedDict[str, float] = OrderedDict()
        """Transactions that were ended, and when (loop time)."""
        self._heartbeats.everywhere = True
        self._dispatcher.on(CheckTransactionState, self._asked)

    async def start(self) -> None:
        """As `Producer.start`. From then on brokers may ask ``check`` about transactions of this group, also
        of topics that this producer never sent to: those of a process that is gone, for one."""
        await super().start()
        self._heartbeats.start()

    def transaction(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        timeout_ms: int | None = None,
    ) -> Transaction:
        """A context in which the local transaction of a message runs.

        Entering it stores the half message and raises what `send` raises; nothing is delivered then. Leaving
        it commits the message, unless `Transaction.rollback` or `Transaction.commit` was called inside. When
        it is left by an exception the state stays open, for the local transaction may or may not have
        happened: the broker asks ``check``. Call `Transaction.rollback` where it is certain that it did not.
        """
        return Transaction(self, message, queue, selector, timeout_ms)

    async def close(self) -> None:
        """Leave the group and close all connections. Open transactions are left to the brokers' checks."""
        for task in list(self._checks):
            task.cancel()
        await asyncio.gather(*self._checks, return_exceptions=True)
        await super().close()

    # -- the two phases

    async def _prepare_half(
        self,
        message: Message,
        queue: MessageQueue | None,
        selector: Selector | None,
        timeout_ms: int | None,
    ) -> SendResult:
        if message.unique_id in self._decisions or message.unique_id in self._settled:
            # The decision about that transaction must not answer the check of this one.
            message.unique_id = None
        system = {PROPERTY_TRANSACTION_PREPARED: "true", PROPERTY_PRODUCER_GROUP: self.group}
        try:
            half = await self._send(
                message, queue=queue, selector=selector, timeout_ms=timeout_ms, system=system
            )
            commit_log_offset_of(half)
            return half
        except NotSafelyStored as error:
            # The local transaction does not begin. Without this the broker would ask about it.
            try:
                await self._end(message, error.result, TransactionState.ROLLBACK)
            except TransactionUnconfirmed as unconfirmed:
                log.warning("%s", unconfirmed)
            raise

    async def _end(self, message: Message, half: SendResult, state: TransactionState) -> None:
        """Commit or roll back. Raises `TransactionUnconfirmed`."""
        transaction_id = half.transaction_id or half.message_id
        self._decided(transaction_id, state)
        session = self._session
        header = self._ending(
            state,
            topic=message.topic,
            half_offset=half.queue_offset,
            commit_log_offset=commit_log_offset_of(half),
            message_id=half.message_id,
            transaction_id=transaction_id,
            from_check=False,
            broker_name=half.broker_name,
        )
        broker_name = half.broker_name
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._end_timeout_ms / 1000
        failure: Exception = ConnectFailed(broker_name, "has no master")
        route = session.known_route(message.topic)
        while True:
            address = route.master(broker_name) if route is not None else None
            left_ms = (deadline - loop.time()) * 1000
            if left_ms <= 0 or session.closed:
                raise TransactionUnconfirmed(transaction_id, state.name.lower(), failure) from failure
            if address is not None:
                try:
                    await session.net.call(address, header, timeout_ms=left_ms)
                except NetError as error:
                    failure = error
                except MQError as error:
                    failure = error
                    if error.code not in _AGAIN and not error.stale_route:
                        raise TransactionUnconfirmed(transaction_id, state.name.lower(), error) from error
                else:
                    self._decisions.pop(transaction_id, None)
                    self._settle(transaction_id)
                    self._report(message, half.message_id, transaction_id, address, state, from_check=False)
                    return
            if route is not None:
                await asyncio.sleep(OUTAGE_POLL_S)
            try:
                route = await session.refresh_or_known(message.topic)
            except (NetError, MQError) as error:  # for one, a topic that was created for this message
                failure = error
                await asyncio.sleep(OUTAGE_POLL_S)

    def _decided(self, transaction_id: str, state: TransactionState) -> None:
        self._decisions[transaction_id] = state
        while len(self._decisions) > MAX_DECISIONS:
            self._decisions.popitem(last=False)

    def _settle(self, transaction_id: str) -> None:
        now = asyncio.get_running_loop().time()
        self._settled[transaction_id] = now
        while self._settled and next(iter(self._settled.values())) < now - SETTLED_S:
            self._settled.popitem(last=False)

    def _ending(
        self,
        state: TransactionState,
        *,
        topic: str | None,
        half_offset: int,
        commit_log_offset: int,
        message_id: str,
        transaction_id: str | None,
        from_check: bool,
        broker_name: str | None,
    ) -> EndTransaction:
        return EndTransaction(
            producer_group=self.group,
            tran_state_table_offset=half_offset,
            commit_log_offset=commit_log_offset,
            commit_or_rollback=COMMIT_OR_ROLLBACK[state],
            msg_id=message_id,
            topic=topic,
            from_transaction_check=from_check,
            transaction_id=transaction_id,
            broker_name=broker_name,
        )

    def _report(
        self,
        message: Message | MessageExt,
        message_id: str,
        transaction_id: str,
        address: str,
        state: TransactionState,
        *,
        from_check: bool,
    ) -> None:
        if self._hooks:
            report_end(
                self._hooks,
                TransactionEnd(
                    self.group,
                    self.client_id,
                    message,
                    message_id,
                    transaction_id,
                    address,
                    state,
                    from_check,
                ),
            )

    # -- what brokers ask

    def _asked(self, request: Request, header: CheckTransactionState) -> None:
        """Sent oneway: the answer is an `EndTransaction` on the same connection."""
        try:
            message = decode_record(request.command.body)
        except (MessageFormatError, CompressionError) as error:
            log.warning("%s asks about a transaction: %s", request.connection, error)
            return
        if message.properties.get(PROPERTY_PRODUCER_GROUP) != self.group:
            log.info("%s asks about a transaction of another group", request.connection)
            return
        if len(self._checks) >= MAX_CHECKS:
            log.warning(
                "%d transaction checks wait: another one is ignored, and the broker will repeat it",
                MAX_CHECKS,
            )
            return
        task = asyncio.get_running_loop().create_task(self._answer(request.connection, header, message))
        self._checks.add(task)
        task.add_done_callback(self._checks.discard)

    async def _answer(
        self, connection: Connection, header: CheckTransactionState, message: MessageExt
    ) -> None:
        message_id = message.properties.get(PROPERTY_UNIQUE_KEY) or message.message_id
        transaction_id = header.transaction_id or message_id
        async with self._slots:
            state = await self._state_of(transaction_id, message)
        ending = self._ending(
            state,
            topic=header.topic,
            half_offset=header.tran_state_table_offset,
            commit_log_offset=header.commit_log_offset,
            message_id=message_id,
            transaction_id=header.transaction_id,
            from_check=True,
            broker_name=header.broker_name,
        )
        if connection.closed:
            log.info("transaction %s: the broker that asked is gone; another one asks again", transaction_id)
            return
        connection.oneway(ending)
        if state is not TransactionState.UNKNOWN:
            self._settle(transaction_id)
        self._report(message, message_id, transaction_id, str(connection), state, from_check=True)

    async def _state_of(self, transaction_id: str, message: MessageExt) -> TransactionState:
        now = asyncio.get_running_loop().time()
        if self._settled.get(transaction_id, -SETTLED_S) > now - SETTLED_S:
            return TransactionState.UNKNOWN
        decided = self._decisions.get(transaction_id)
        if decided is not None:
            return decided
        try:
            outcome = self._check(message)
            if inspect.isawaitable(outcome):
                outcome = await outcome
            return TransactionState(outcome)
        except Exception:
            log.exception("the check of transaction %s failed; the broker asks again", transaction_id)
            return TransactionState.UNKNOWN


def commit_log_offset_of(half: SendResult) -> int:
    """Commit log offset of a half message. Raises `MQError` when the broker's answer does not contain it."""
    try:
        return decode_message_id(half.offset_message_id)[2]
    except MessageFormatError as error:
        raise MQError(ResponseCode.SYSTEM_ERROR, f"the answer to a half message: {error}") from None


class Transaction:
    """The message of one local transaction; made by `TransactionProducer.transaction`."""

    def __init__(
        self,
        producer: TransactionProducer,
        message: Message,
        queue: MessageQueue | None,
        selector: Selector | None,
        timeout_ms: int | None,
    ) -> None:
        self._producer = producer
        self._queue = queue
        self._selector = selector
        self._timeout_ms = timeout_ms
        self._half: SendResult | None = None
        self.message = message
        self.state = TransactionState.UNKNOWN
        """What was decided inside the context."""

    @property
    def half(self) -> SendResult:
        """Where the half message is; known inside the context."""
        if self._half is None:
            raise RuntimeError("use the transaction with async with")
        return self._half

    @property
    def transaction_id(self) -> str:
        """What ``check`` gets as the message's id: keep it with the local transaction."""
        return self.half.transaction_id or self.half.message_id

    async def __aenter__(self) -> Self:
        if self._half is not None:
            raise RuntimeError("a transaction can be entered once")
        self._half = await self._producer._prepare_half(
            self.message, self._queue, self._selector, self._timeout_ms
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.state is not TransactionState.UNKNOWN:
            return
        if error is None:
            await self.commit()
        else:
            log.info(
                "transaction %s stays undecided after %r: the broker will check it",
                self.transaction_id,
                error,
            )

    async def commit(self) -> None:
        """Have the message delivered. Raises `TransactionUnconfirmed`: it is delivered later then."""
        await self._decide(TransactionState.COMMIT)

    async def rollback(self) -> None:
        """Drop the message. Raises `TransactionUnconfirmed`: it is dropped later then."""
        await self._decide(TransactionState.ROLLBACK)

    async def _decide(self, state: TransactionState) -> None:
        half = self.half
        if self.state is not TransactionState.UNKNOWN:
            raise RuntimeError(f"the transaction is decided already: {self.state.name}")
        self.state = state
        await self._producer._end(self.message, half, state)
