"""END_TRANSACTION (37), END_TRANSACTIONS (60041): a producer commits or rolls back one or many half messages.

Checks, codes and remarks are RocketMQ's (`EndTransactionProcessor`). In addition a request must name the half
message by its unique id: if a half message was never acknowledged, another one may be at its offsets after a
switch.

A repeated commit does not deliver the message again; in RocketMQ it does. The master remembers its
decisions and those of the op messages that it has read. For older half messages it searches the index.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from batonmq.broker.messages.answers import CODE_OF, not_stored, overloaded
from batonmq.broker.messages.appender import PutStatus
from batonmq.broker.transaction.askers import SharedRequest
from batonmq.broker.transaction.batch import rows_of
from batonmq.broker.transaction.core import State
from batonmq.broker.transaction.half import LATER, ends_too_late, first_copy, real_place, to_committed
from batonmq.net.dispatch import Dispatcher, Outcome, Reply, Request
from batonmq.protocol.bodies.transactions import MOST_ENDS
from batonmq.protocol.bodies.transactions import TransactionEnds as EndsBody
from batonmq.protocol.codes import MessageSysFlag, ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.send import EndTransaction, EndTransactions
from batonmq.protocol.json import decode_request
from batonmq.protocol.message.errors import MessageFormatError
from batonmq.protocol.message.layout import HOST_V6_EXTRA, POSITIONS
from batonmq.protocol.message.properties import (
    PROPERTY_PRODUCER_GROUP,
    PROPERTY_TRANSACTION_CHECK_TIMES,
    PROPERTY_UNIQUE_KEY,
)
from batonmq.protocol.names import SCHEDULE_TOPIC, TIMER_TOPIC

if TYPE_CHECKING:
    from collections.abc import Callable, Container

    from batonmq.broker.context import Broker
    from batonmq.broker.transaction.askers import Asker
    from batonmq.broker.transaction.term import Term
    from batonmq.protocol.buffers import Buffer
    from batonmq.protocol.message.record import MessageExt
    from batonmq.store.results import PutResult

log = logging.getLogger(__name__)

_NO_REMARK: Final = "not set any response code"
"""RocketMQ's remark for codes without one."""
MOST_BYTES: Final = 32 << 20
"""Most bytes of all of them, because they are appended in one loop turn."""
ROW_BYTES: Final = 128
"""Counted for each message of a batch: what appending one costs, however small it is."""
_INDEXED: Final = 50_000
"""Records that are indexed at a time before a look-up."""
_SAME_KEY: Final = 64
"""Most messages with the unique key of a half message that are compared."""
_WAITING_IN: Final = (SCHEDULE_TOPIC, TIMER_TOPIC)
"""Where committed messages with a delay wait."""
_LOOKS: Final = 16
"""Half messages that are looked up in the index in one loop turn."""
_SYS_FLAG_AT: Final = POSITIONS["sys_flag"]
_PREPARED_AT: Final = POSITIONS["prepared_transaction_offset"]
"""Positions of fields in a record with IPv4 hosts."""
_ENDS: Final = (MessageSysFlag.TRANSACTION_COMMIT, MessageSysFlag.TRANSACTION_ROLLBACK)
_MASK: Final = MessageSysFlag.TRANSACTION_MASK
_COMMITTED: Final = (State.COMMITTED, State.COMMITTED_SAFE)
_GIVEN_UP: Final = (State.MOVED, State.MOVED_SAFE)
"""Or stored again at the end of the queue."""
_ROLLED_BACK: Final = (State.ROLLED_BACK, State.ROLLED_BACK_SAFE)


class _Commit:
    """A committed message on its way to the log (`Waiter`)."""

    def __init__(
        self, handlers: TransactionEnds, term: Term, record: MessageExt, original: int, topic: str
    ) -> None:
        # Without PUT_OK nothing is lost: the half message counts as undecided until its op message is
        # confirmed, and the next master checks it. So END_TRANSACTION gets RocketMQ's answer. A sender of
        # END_TRANSACTIONS may not get a check, so it gets an error and repeats the request.
        self.wait = True
        self._handlers = handlers
        self._term = term
        self._record = record
        self._original = original
        self._topic = topic
        self._state_before = term.window.state(record.queue_offset)

    def stored(self, status: PutStatus, result: PutResult | None) -> None:
        term = self._term
        askers = term.commits.pop(self._original, [])
        if result is None and status is not PutStatus.PUT_OK:
            if term.window.state(self._record.queue_offset) == State.COMMITTING:
                # Else an op message about an earlier move has come meanwhile.
                term.window.set(self._record.queue_offset, self._state_before)
            self._handlers.failed(askers, status)
            return
        if not term.ended:
            term.decide(self._record, State.COMMITTED)
            self._handlers.committed(self._record, self._original, self._topic)
        if result is not None and status is not PutStatus.PUT_OK:
            term.not_safe_yet(self._original, result.end_offset)
        for asker in askers:
            if status is PutStatus.PUT_OK or not isinstance(asker, SharedRequest):
                asker.reply(Reply())
            else:
                asker.fail(_not_safe(status))


class TransactionEnds:
    """Handles END_TRANSACTION and END_TRANSACTIONS."""

    def __init__(self, broker: Broker, current: Callable[[], Term | None]) -> None:
        """`current`: the term of this master or acting master; None on a slave."""
        self._broker = broker
        self._settings = broker.settings
        self._current = current
        self.waiting = 0
        """Requests that wait until the decisions of earlier terms are known."""
        self._looking: list[set[int]] = []
        """What look-ups under way have found: half offsets (of first copies) of committed messages."""

    def register(self, dispatcher: Dispatcher) -> None:
        dispatcher.on(EndTransaction, self.end)
        dispatcher.on(EndTransactions, self.end_many)

    def end(self, request: Request, header: EndTransaction) -> Outcome:
        term = self._master_term()
        kind = header.commit_or_rollback
        if kind not in _ENDS:
            if kind != MessageSysFlag.TRANSACTION_NOT_TYPE:
                raise MQError(ResponseCode.SYSTEM_ERROR, f"commitOrRollback={kind} is neither 0, 8 nor 12")
            log.debug("%s does not know yet how transaction %s ends", request.connection, header.msg_id)
            return None  # RocketMQ does not answer
        self._check_room(term)
        if not term.ready.done():
            return self._end_later(request, header)
        return self._end(term, request, header)

    async def end_many(self, request: Request, header: EndTransactions) -> Reply | None:
        """Check all half messages before the first one is ended; append the messages in one loop turn."""
        kind = header.commit_or_rollback
        if kind not in _ENDS:
            raise MQError(ResponseCode.INVALID_PARAMETER, f"commitOrRollback {kind} ends no transaction")
        ends = decode_request(request.command.body, EndsBody).ends
        if not 0 < len(ends) <= MOST_ENDS:
            raise MQError(ResponseCode.INVALID_PARAMETER, f"{len(ends)} half messages, not 1 to {MOST_ENDS}")
        self._check_room(self._master_term())
        term = await self._ready_term()
        records, size = [], 0
        for end in ends:
            one = EndTransaction(
                header.producer_group, end.tran_state_table_offset, end.commit_log_offset, kind, end.msg_id
            )
            one.transaction_id = end.msg_id
            records.append(self._checked(term, one))
            size += records[-1].store_size + ROW_BYTES * rows_of(records[-1].properties)
            if size > MOST_BYTES and len(records) > 1:
                raise MQError(ResponseCode.INVALID_PARAMETER, f"half messages of over {MOST_BYTES} bytes")
        delivered = await self._look_up(term, records)
        if self._master_term() is not term:
            raise overloaded()
        open_ones = [record for record in records if not self.ended_before(term, record, kind, delivered)]
        for record in records:
            first = first_copy(record)
            if not term.is_safe(record.queue_offset if first is None else first):
                raise _not_safe(PutStatus.FLUSH_SLAVE_TIMEOUT)
        if not open_ones:
            return Reply()
        shared = SharedRequest(request, len(open_ones))
        begin = self._broker.appender.place
        for record in open_ones:
            try:
                outcome = self._apply(term, shared, record, kind)
            except MQError as error:
                shared.fail(error)
            else:
                if outcome is not None:
                    shared.reply(outcome)
        self._broker.appender.keep_whole(begin)
        return None

    def _check_room(self, term: Term) -> None:
        capacity = self._settings.broker.end_transaction_pool_queue_capacity
        if self.waiting + len(term.commits) >= capacity or self._broker.appender.full(capacity):
            raise overloaded()

    def _master_term(self) -> Term:
        term = self._current()
        if term is None or term.ended or not self._broker.role.serves:
            raise MQError(ResponseCode.SLAVE_NOT_AVAILABLE, _NO_REMARK)
        return term

    async def _ready_term(self) -> Term:
        """The term, when the decisions of earlier terms are known."""
        self.waiting += 1
        try:
            while not (term := self._master_term()).ready.done():
                await term.wait_ready()
        finally:
            self.waiting -= 1
        return self._master_term()

    async def _end_later(self, request: Request, header: EndTransaction) -> Reply | None:
        return self._end(await self._ready_term(), request, header)

    def _end(self, term: Term, request: Request, header: EndTransaction) -> Reply | None:
        record = self._checked(term, header)
        kind = header.commit_or_rollback
        if self.ended_before(term, record, kind):
            return Reply()
        return self._apply(term, request, record, kind)

    async def _look_up(self, term: Term, records: list[MessageExt]) -> set[int]:
        """Half offsets (of first copies) of half messages that an earlier master has committed, according to
        the index, and of all that are committed meanwhile. Lets other requests run."""
        found: set[int] = set()
        self._looking.append(found)
        looked = 0
        try:
            for record in records:
                first = first_copy(record)
                original = record.queue_offset if first is None else first
                if original in found or _is_known(term, record, original):
                    continue
                if self._was_delivered(term, record, original):
                    found.add(original)
                looked += 1
                if looked % _LOOKS == 0:
                    await asyncio.sleep(0)
        finally:
            self._looking = [other for other in self._looking if other is not found]
        return found

    def ended_before(
        self, term: Term, record: MessageExt, kind: int, delivered: Container[int] | None = None
    ) -> bool:
        """Whether the half message was already ended this way. Raises `MQError` if it was ended the other
        way. `delivered`: see `_look_up`."""
        offset, first = record.queue_offset, first_copy(record)
        original = offset if first is None else first
        if original in term.escaped:
            raise MQError(ResponseCode.SYSTEM_ERROR, "Another broker has the half message now, and checks it")
        window = term.window
        states = (
            (window.state(original),) if first is None else (window.state(original), window.state(offset))
        )
        if max(states) < State.COMMITTED and not window.is_decided(original):
            committed = rolled_back = ended = False  # nearly always
        else:
            committed = any(state in _COMMITTED for state in states)
            rolled_back = any(state in _ROLLED_BACK for state in states)
            ended = committed or rolled_back or State.DECIDED in states or window.is_decided(original)
        if kind == MessageSysFlag.TRANSACTION_ROLLBACK:
            if original in term.commits or committed:
                raise MQError(ResponseCode.SYSTEM_ERROR, "The transaction was committed before")
            return ended
        if rolled_back:
            raise MQError(ResponseCode.SYSTEM_ERROR, "The transaction was rolled back before")
        if ended or original in term.commits or _is_known(term, record, original):
            return ended
        before = self._was_delivered(term, record, original) if delivered is None else original in delivered
        if before and window.is_undecided(offset):
            term.decide(record, State.COMMITTED)  # a copy: else it would be checked until it is given up
        return before

    def _was_delivered(self, term: Term, record: MessageExt, original: int) -> bool:
        """Whether an earlier master has committed this half message, according to the index."""
        store, unique_key = self._broker.store, record.properties.get(PROPERTY_UNIQUE_KEY)
        place = real_place(record)
        if place is None or not unique_key or not store.config.message_index_enable:
            return False
        if store.build_index(_INDEXED) and store.build_index(_INDEXED):
            raise overloaded()  # the index does not cover the whole log yet
        topics = [place[0]]
        if not record.properties.keys().isdisjoint(LATER):
            topics += _WAITING_IN
        for topic in topics:
            for view in store.query_by_key(topic, unique_key, _SAME_KEY).records:
                prepared_at = _committed_from(view)
                if prepared_at is None:
                    continue
                if prepared_at == record.physical_offset:
                    return True
                half = term.half_message(prepared_at)
                if half is None:
                    continue
                # A message that was given up and resumed is another half message, but was born once.
                same = half.born_timestamp == record.born_timestamp
                if same or original in (half.queue_offset, first_copy(half)):
                    return True
        return False

    def _apply(self, term: Term, asker: Asker, record: MessageExt, kind: int) -> Reply | None:
        """End a half message that is open; None if `asker` gets the answer later."""
        if kind == MessageSysFlag.TRANSACTION_ROLLBACK:
            term.decide(record, State.ROLLED_BACK)
            place = real_place(record)
            if place is not None:
                term.counts.roll_back(place[0])
            return Reply()
        first = first_copy(record)
        original = record.queue_offset if first is None else first
        if original not in term.commits:
            self._commit(term, record, original)
        term.commits[original].append(asker)
        return None

    def _checked(self, term: Term, header: EndTransaction) -> MessageExt:
        record = term.half_message(header.commit_log_offset)
        if record is None or not _names(header, record):
            raise MQError(ResponseCode.SYSTEM_ERROR, "Find prepared transaction message failed")
        now_ms, timeout_ms = self._broker.clock.now_ms(), self._settings.broker.transaction_time_out
        if not header.from_transaction_check and ends_too_late(record, now_ms, timeout_ms):
            raise MQError(ResponseCode.ILLEGAL_OPERATION, _NO_REMARK)
        if record.properties.get(PROPERTY_PRODUCER_GROUP) != header.producer_group:
            raise MQError(ResponseCode.SYSTEM_ERROR, "The producer group wrong")
        if record.queue_offset != header.tran_state_table_offset:
            raise MQError(ResponseCode.SYSTEM_ERROR, "The transaction state table offset wrong")
        return record

    def _commit(self, term: Term, record: MessageExt, original: int) -> None:
        place = real_place(record)
        if place is None:
            raise MQError(ResponseCode.SYSTEM_ERROR, "Find prepared transaction message failed")
        broker = self._broker
        try:
            message, properties = to_committed(record, place)
            stored = broker.redirects.apply(message, properties)
        except MessageFormatError:
            raise not_stored(PutStatus.MESSAGE_ILLEGAL, self._settings.store.max_message_size) from None
        commit = _Commit(self, term, record, original, place[0])
        term.window.set(record.queue_offset, State.COMMITTING)
        term.commits[original] = []
        broker.appender.submit(stored or message, commit)

    # -- outcomes

    def committed(self, record: MessageExt, original: int, topic: str) -> None:
        for found in self._looking:
            found.add(original)
        term = self._current()
        if term is not None:
            term.counts.commit(topic, self._broker.clock.now_ms() - record.born_timestamp)

    def failed(self, askers: list[Asker], status: PutStatus) -> None:
        for asker in askers:
            asker.fail(not_stored(status, self._settings.store.max_message_size))


def _is_known(term: Term, record: MessageExt, original: int) -> bool:
    """Whether this master knows all decisions about a half message. One that was given up and resumed has two
    places in the queue that do not name each other, and may have been committed at the other one."""
    if record.queue_offset == original and PROPERTY_TRANSACTION_CHECK_TIMES in record.properties:
        return False  # resumed
    return term.window.remembers(original) and term.window.state(original) not in _GIVEN_UP


def _committed_from(view: Buffer) -> int | None:
    """Commit log offset of the half message that this record commits; None for any other record. Decodes no
    more of it: anybody may store large messages with a half message's unique key."""
    flags = int.from_bytes(view[_SYS_FLAG_AT : _SYS_FLAG_AT + 4], "big")
    if flags & _MASK != MessageSysFlag.TRANSACTION_COMMIT:
        return None
    at = _PREPARED_AT
    for v6 in (MessageSysFlag.BORN_HOST_V6, MessageSysFlag.STORE_HOST_V6):
        at += HOST_V6_EXTRA if flags & v6 else 0
    return int.from_bytes(view[at : at + 8], "big", signed=True)


def _not_safe(status: PutStatus) -> MQError:
    return MQError(CODE_OF[status], f"committed, but not safe yet ({status.value}): ask again")


def _names(header: EndTransaction, record: MessageExt) -> bool:
    """Whether the request is about this half message. RocketMQ compares the offsets only."""
    unique_key = record.properties.get(PROPERTY_UNIQUE_KEY)
    return not unique_key or not header.transaction_id or unique_key in (header.transaction_id, header.msg_id)
