"""The part for transactional messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Final

from batonmq.broker.messages.answers import sending_forbidden
from batonmq.broker.part import Part
from batonmq.broker.tables.persistence import Table
from batonmq.broker.transaction.batch import is_batch
from batonmq.broker.transaction.check_counts import CheckCounts
from batonmq.broker.transaction.checker import Checker
from batonmq.broker.transaction.counts import TransactionCounts
from batonmq.broker.transaction.ending import TransactionEnds
from batonmq.broker.transaction.half import LATER, is_prepared, to_half
from batonmq.broker.transaction.metrics import METRICS, sources
from batonmq.broker.transaction.recovery import Recovery
from batonmq.broker.transaction.resume import ResumeHandler
from batonmq.broker.transaction.term import Term
from batonmq.common.config import INT_MAX
from batonmq.common.tasks import Tasks
from batonmq.net.dispatch import Dispatcher, Reply, Request
from batonmq.protocol.headers.broker.replication import GetAllTransactionChecks
from batonmq.protocol.message.errors import MessageFormatError
from batonmq.protocol.message.properties import (
    PROPERTY_TRANSACTION_CHECK_TIMES,
    PROPERTY_TRANSACTION_ID,
    PROPERTY_TRANSACTION_PREPARED,
    PROPERTY_UNIQUE_KEY,
    property_start,
)

if TYPE_CHECKING:
    from batonmq.broker.context import Broker
    from batonmq.broker.role import RoleState
    from batonmq.common.metrics import Metric, Source
    from batonmq.protocol.message.record import StoredMessage

_MOST_CHECKS: Final = str(INT_MAX)
"""The longest number of checks that a copy may have in its properties."""


class TransactionPart(Part):
    METRICS: ClassVar[tuple[Metric, ...]] = METRICS

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._tasks = Tasks()
        self.counts = TransactionCounts()
        self.checks = CheckCounts()
        self.term: Term | None = None
        """The term of this master or acting master; None on a slave."""
        self.ends = TransactionEnds(broker, lambda: self.term)
        self._resume = ResumeHandler(broker, self.ends, lambda: self.term)
        broker.redirects.add(_HalfMessages(broker, self.counts))

    def handlers(self, dispatcher: Dispatcher) -> None:
        self.ends.register(dispatcher)
        self._resume.register(dispatcher)
        dispatcher.on(GetAllTransactionChecks, self._all_checks)

    def tables(self) -> Sequence[Table]:
        settings, checks = self._broker.settings, self.checks
        return (
            Table(
                name="transactionChecks",
                encode=checks.encode,
                restore=checks.restore,
                interval_ms=lambda: settings.broker.flush_consumer_offset_interval,
                take_changed=checks.take_changed,
                copy=checks.copy,
            ),
        )

    def _all_checks(self, request: Request, header: GetAllTransactionChecks) -> Reply:
        return Reply(body=self.checks.encode())

    def metrics(self) -> Mapping[Metric, Source]:
        return sources(self.counts)

    @property
    def unanswered(self) -> int:
        return self.ends.waiting

    async def withdraw(self) -> None:
        if self.term is not None:
            self.term.ops.flush()  # else the next master would check decided messages

    async def stop(self) -> None:
        await self._tasks.cancel()

    def role_ending(self) -> None:
        if self.term is not None:
            self.term.end()
            self.term = None
        self.counts.half = {}

    def role_changed(self, role: RoleState) -> None:
        if role.serves and self.term is None:
            self.term = Term(self._broker, self.counts, self.checks)
            self._tasks.keep(partial(self._serve, self.term), "transactions")

    async def _serve(self, term: Term) -> None:
        if not term.ready.done():
            await Recovery(self._broker, term).run()
        await Checker(self._broker, term).run()


class _HalfMessages:
    """Redirects half messages to their queue (`Redirect`)."""

    marks: tuple[bytes, ...] = (property_start(PROPERTY_TRANSACTION_PREPARED),)

    def __init__(self, broker: Broker, counts: TransactionCounts) -> None:
        self._broker = broker
        self._counts = counts

    def redirect(self, message: StoredMessage, properties: dict[str, str]) -> StoredMessage | None:
        if not is_prepared(message, properties):
            return None
        broker = self._broker
        if broker.settings.broker.reject_transaction_message:
            raise sending_forbidden(broker.address, "transaction message")
        if not properties.keys().isdisjoint(LATER):
            if is_batch(properties):
                raise MessageFormatError("a batch cannot be delayed")
            # The delay starts at the commit. Refuse now what the commit would refuse.
            committed = {k: v for k, v in properties.items() if k != PROPERTY_TRANSACTION_PREPARED}
            if PROPERTY_UNIQUE_KEY in properties:
                committed[PROPERTY_TRANSACTION_ID] = properties[PROPERTY_UNIQUE_KEY]
            committed[PROPERTY_TRANSACTION_CHECK_TIMES] = _MOST_CHECKS
            broker.redirects.apply(message, committed)
        stored = to_half(message, properties)
        self._counts.prepared(message.topic)
        return stored
