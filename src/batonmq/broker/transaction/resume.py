"""RESUME_CHECK_HALF_MESSAGE (323): check a half message again that was given up.

Source: RocketMQ's `AdminBrokerProcessor.resumeCheckHalfMessage`. Unlike RocketMQ it refuses the ids of
decided messages and of records that are not half messages.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from batonmq.broker.messages.internal import put
from batonmq.broker.transaction.half import real_place, to_resumed
from batonmq.net.dispatch import Dispatcher, Reply, Request
from batonmq.protocol.codes import MessageSysFlag, ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.send import ResumeCheckHalfMessage
from batonmq.protocol.message.errors import MessageFormatError
from batonmq.protocol.message.ids import decode_message_id
from batonmq.protocol.message.properties import PROPERTY_UNIQUE_KEY
from batonmq.protocol.message.record import MessageExt, decode_record
from batonmq.protocol.names import TRANS_CHECK_MAX_TIME_TOPIC, TRANS_HALF_TOPIC

if TYPE_CHECKING:
    from collections.abc import Callable

    from batonmq.broker.context import Broker
    from batonmq.broker.transaction.ending import TransactionEnds
    from batonmq.broker.transaction.term import Term

log = logging.getLogger(__name__)

_FAILED: Final = f"Put message back to {TRANS_HALF_TOPIC} failed."
_SAME_KEY: Final = 64
"""Most half messages with one unique key that are looked at."""
_SOURCES: Final = (TRANS_CHECK_MAX_TIME_TOPIC, TRANS_HALF_TOPIC)


class ResumeHandler:
    def __init__(self, broker: Broker, ends: TransactionEnds, current: Callable[[], Term | None]) -> None:
        """`current`: the term of this master; None on a slave."""
        self._broker = broker
        self._ends = ends
        self._current = current
        self._one_at_a_time = asyncio.Lock()

    def register(self, dispatcher: Dispatcher) -> None:
        dispatcher.on(ResumeCheckHalfMessage, self.resume)

    async def resume(self, request: Request, header: ResumeCheckHalfMessage) -> Reply:
        term = self._current()
        if term is not None:
            await term.wait_ready()
        if term is None or term.ended:
            raise MQError(ResponseCode.SYSTEM_ERROR, f"{_FAILED} This broker is not a master.")
        record = self._half_message(header.msg_id or "")
        if record.topic == TRANS_HALF_TOPIC:
            term.grow()
            if not term.window.is_undecided(record.queue_offset):
                raise MQError(
                    ResponseCode.SYSTEM_ERROR,
                    f"{header.msg_id} was committed, rolled back or given up. In the last case use its id in "
                    f"{TRANS_CHECK_MAX_TIME_TOPIC}",
                )
            term.window.set(record.queue_offset, 0)  # it is in the queue: only reset its number of checks
            return Reply()
        async with self._one_at_a_time:  # the next one looks for what this one stores
            if self._is_checked_again(term, record):
                return Reply()
            outcome = await put(self._broker.appender, to_resumed(record))
        if not outcome.ok:
            raise MQError(ResponseCode.SYSTEM_ERROR, f"{_FAILED} {outcome.status.value}")
        log.info("half message checked again id=%s client=%s", header.msg_id, request.connection.peer)
        return Reply()

    def _is_checked_again(self, term: Term, given_up: MessageExt) -> bool:
        """Whether the half message is in the queue again already: it would be delivered twice. Raises
        `MQError` if a late request has decided it. The index tells, as far as it reaches."""
        unique_key, store = given_up.properties.get(PROPERTY_UNIQUE_KEY), self._broker.store
        if not unique_key or not store.config.message_index_enable:
            return False
        term.grow()
        for view in store.query_by_key(TRANS_HALF_TOPIC, unique_key, _SAME_KEY).records:
            half = decode_record(view, inflate=False)
            if half.born_timestamp != given_up.born_timestamp:
                continue
            if term.window.is_undecided(half.queue_offset):
                return True
            if self._ends.ended_before(term, half, MessageSysFlag.TRANSACTION_COMMIT):
                raise MQError(ResponseCode.SYSTEM_ERROR, f"{_FAILED} It was committed or rolled back.")
        return False

    def _half_message(self, message_id: str) -> MessageExt:
        try:
            _, _, physical_offset = decode_message_id(message_id)
            view = self._broker.store.message_at(physical_offset)
            record = None if view is None else decode_record(view, inflate=False)
        except MessageFormatError as error:
            raise MQError(ResponseCode.SYSTEM_ERROR, f"{_FAILED} {error}") from None
        if record is None or record.topic not in _SOURCES or real_place(record) is None:
            raise MQError(
                ResponseCode.SYSTEM_ERROR, f"{_FAILED} {message_id} is not a half message of this broker"
            )
        return record
