"""Requests of pop consumers: converts between frames and the calls of `Popper` and `Acknowledger`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from batonmq.broker.messages.appender import PutStatus
from batonmq.broker.pop.popper import MAX_INVISIBLE_MS
from batonmq.broker.pop.taker import PopAnswer
from batonmq.broker.requests import required_body
from batonmq.broker.role import rejected
from batonmq.net.dispatch import Dispatcher, Outcome, Reply, Request
from batonmq.protocol.bodies.pop import BatchAck, BatchAckMessageRequestBody, differences_of
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.pop import (
    AckMessage,
    BatchAckMessage,
    ChangeInvisibleTime,
    ChangeInvisibleTimeResponse,
    Notification,
    NotificationResponse,
    PeekMessage,
    PollingInfo,
    PollingInfoResponse,
    PopMessage,
)
from batonmq.protocol.pop import ORDER_REVIVE_QUEUE, Receipt, parse_receipt, topic_of

if TYPE_CHECKING:
    from batonmq.broker.context import Broker
    from batonmq.broker.pop.acknowledger import Acknowledger
    from batonmq.broker.pop.popper import Popper

READY_S: Final = 5.0
"""Longest time that a request waits while a new master reads the revive queues."""
MAX_BATCH_ACKS: Final = 10_000
"""Receipts of one BATCH_ACK_MESSAGE."""
_ACKNOWLEDGED: Final = Reply()


class _FramePop:
    """A pop from a remoting frame (`PopCall`)."""

    __slots__ = ("_request",)

    def __init__(self, request: Request) -> None:
        self._request = request
        request.command.body = b""  # means nothing, and it may be held for long

    @property
    def peer(self) -> str:
        return self._request.connection.peer

    @property
    def finished(self) -> bool:
        return self._request.answered or self._request.connection.closed

    def answer(self, answer: PopAnswer) -> None:
        self._request.reply(
            Reply(answer.header, body=answer.buffers or b"", code=answer.code, remark=answer.remark)
        )

    def fail(self, error: MQError) -> None:
        self._request.fail(error)

    def notify(self, has_message: bool, polling_full: bool) -> None:
        self._request.reply(Reply(NotificationResponse(has_msg=has_message, polling_full=polling_full)))


class PopHandlers:
    """Handlers of POP_MESSAGE and what belongs to it."""

    def __init__(self, broker: Broker, popper: Popper, acknowledger: Acknowledger) -> None:
        self._broker = broker
        self._popper = popper
        self._acks = acknowledger
        self.unanswered = 0
        """Number of acks whose records are not safe yet."""

    def register(self, dispatcher: Dispatcher) -> None:
        dispatcher.on(PopMessage, self._pop)
        dispatcher.on(AckMessage, self._ack)
        dispatcher.on(BatchAckMessage, self._batch_ack)
        dispatcher.on(ChangeInvisibleTime, self._change)
        dispatcher.on(Notification, self._notification)
        dispatcher.on(PeekMessage, self._peek)
        dispatcher.on(PollingInfo, self._polling_info)

    def _when_ready(self, handle: Callable[[], None]) -> Outcome:
        """Run `handle` once the check points are known."""
        if self._popper.ready:
            handle()
            return None
        if not self._broker.role.serves:
            raise rejected(self._broker.role)
        return self._wait_and(handle)

    async def _wait_and(self, handle: Callable[[], None]) -> None:
        try:
            async with asyncio.timeout(READY_S):
                await self._popper.until_ready()
        except TimeoutError:
            raise rejected(self._broker.role) from None
        handle()

    # -- pops

    def _pop(self, request: Request, header: PopMessage) -> Outcome:
        if request.oneway:
            return None
        return self._when_ready(lambda: self._popper.pop(header, _FramePop(request)))

    def _notification(self, request: Request, header: Notification) -> Outcome:
        if request.oneway:
            return None
        return self._when_ready(lambda: self._popper.notification(header, _FramePop(request)))

    def _peek(self, request: Request, header: PeekMessage) -> Reply:
        answer = self._popper.peek(header, _FramePop(request))
        return Reply(answer.header, body=answer.buffers or b"", code=answer.code, remark=answer.remark)

    def _polling_info(self, request: Request, header: PollingInfo) -> Reply:
        return Reply(PollingInfoResponse(self._popper.polling(header, request.connection.peer)))

    # -- acks

    def _done(self, request: Request, reply: Reply) -> Callable[[PutStatus], None]:
        """Answers a request once its record is safe."""
        self.unanswered += 1

        def done(status: PutStatus) -> None:
            self.unanswered -= 1
            if request.answered:
                return
            if status is PutStatus.PUT_OK:
                request.reply(reply)
            else:
                request.fail(self._acks.error_of(status))

        return done

    def _ack(self, request: Request, header: AckMessage) -> Outcome:
        receipt = parse_receipt(header.extra_info)
        if self._popper.ready:  # as `_when_ready`: consumers acknowledge every message
            self._ack_now(request, header, receipt)
            return None
        return self._when_ready(lambda: self._ack_now(request, header, receipt))

    def _ack_now(self, request: Request, header: AckMessage, receipt: Receipt) -> None:
        topic, group, queue_id, offset = (
            header.topic,
            header.consumer_group,
            header.queue_id,
            header.offset,
        )
        self._acks.check(topic, queue_id, offset, request.connection.peer, end=1)
        done = self._done(request, _ACKNOWLEDGED)
        try:
            if receipt.revive_queue == ORDER_REVIVE_QUEUE:
                self._acks.ack_ordered(topic, group, queue_id, offset, receipt.pop_time, done)
            else:
                key = (topic, group, queue_id, receipt.start_offset, receipt.pop_time)
                self._acks.ack(key, (offset,), receipt, done)
        except MQError:
            self.unanswered -= 1
            raise

    def _batch_ack(self, request: Request, header: BatchAckMessage) -> Outcome:
        if not request.command.body:
            raise MQError(ResponseCode.NO_MESSAGE, "the batch has no acks")
        acks = required_body(request, BatchAckMessageRequestBody).acks
        if not acks:
            raise MQError(ResponseCode.NO_MESSAGE, "the batch has no acks")
        if len(acks) > MAX_BATCH_ACKS:
            raise MQError(
                ResponseCode.INVALID_PARAMETER, f"{len(acks)} acks in a batch, at most {MAX_BATCH_ACKS}"
            )
        body = [(ack, differences_of(ack.bit_set)) for ack in acks]
        return self._when_ready(lambda: self._batch_ack_now(request, body))

    def _batch_ack_now(self, request: Request, acks: list[tuple[BatchAck, list[int]]]) -> None:
        """As in RocketMQ, receipts that name nothing are passed over. One answer for all."""
        if not self._broker.role.serves:
            raise rejected(self._broker.role)
        batch = _BatchOutcome(self._done(request, _ACKNOWLEDGED), request.fail)
        for ack, differences in acks:
            try:
                self._ack_each(ack, differences, batch)
            except MQError as error:
                batch.refused(error)  # the others count nevertheless
        batch.done(PutStatus.PUT_OK)

    def _ack_each(self, ack: BatchAck, differences: list[int], batch: _BatchOutcome) -> None:
        topic = topic_of(ack.retry, ack.topic, ack.consumer_group)
        group, queue_id, peer = ack.consumer_group, ack.queue_id, ""
        bounds = self._broker.store.queue_bounds(topic, queue_id)
        offsets = [ack.start_offset + each for each in differences]
        offsets = [each for each in offsets if bounds.min_offset <= each <= bounds.max_offset]
        if not offsets:
            return
        self._acks.check(topic, queue_id, offsets[0], peer, end=1)
        receipt = Receipt(
            ack.start_offset,
            ack.pop_time,
            ack.invisible_time,
            ack.revive_queue_id,
            ack.retry,
            self._broker.settings.broker.broker_name,
            queue_id,
            offsets[0],
        )
        if not receipt.ordered:
            with batch.expecting() as done:
                self._acks.ack(
                    (topic, group, queue_id, ack.start_offset, ack.pop_time), offsets, receipt, done
                )
            return
        for offset in offsets:
            with batch.expecting() as done:
                self._acks.ack_ordered(topic, group, queue_id, offset, ack.pop_time, done)

    # -- changes

    def _change(self, request: Request, header: ChangeInvisibleTime) -> Outcome:
        receipt = parse_receipt(header.extra_info)
        if not 0 <= header.invisible_time <= MAX_INVISIBLE_MS:
            raise MQError(
                ResponseCode.INVALID_PARAMETER, f"the invisible time {header.invisible_time} ms is illegal"
            )
        return self._when_ready(lambda: self._change_now(request, header, receipt))

    def _change_now(self, request: Request, header: ChangeInvisibleTime, receipt: Receipt) -> None:
        topic, group, queue_id = header.topic, header.consumer_group, header.queue_id
        self._acks.check(topic, queue_id, header.offset, request.connection.peer, end=0)
        answer = ChangeInvisibleTimeResponse(
            pop_time=receipt.pop_time,
            invisible_time=header.invisible_time,
            revive_qid=receipt.revive_queue,
        )
        done = self._done(request, Reply(answer))
        try:
            if receipt.ordered:
                receipt = receipt._replace(offset=header.offset)
                answer.invisible_time = self._acks.change_ordered(
                    topic, group, queue_id, receipt, header.invisible_time, done
                )
            else:
                key = (topic, group, queue_id, receipt.start_offset, receipt.pop_time)
                answer.pop_time = self._acks.change(
                    key, header.offset, header.invisible_time, header.suspend, done
                )
        except MQError:
            self.unanswered -= 1
            raise


class _BatchOutcome:
    """Collects what became of the acks of one batch, and answers it."""

    def __init__(self, answer: Callable[[PutStatus], None], fail: Callable[[MQError], None]) -> None:
        self._answer = answer
        self._fail = fail
        self._open = 1
        self._worst = PutStatus.PUT_OK

    @contextmanager
    def expecting(self) -> Iterator[Callable[[PutStatus], None]]:
        """One more outcome will come, unless the block raises."""
        self._open += 1
        try:
            yield self.done
        except MQError:
            self._open -= 1
            raise

    def refused(self, error: MQError) -> None:
        """An ack was not possible. Only an illegal ack of an ordered group fails the batch, as in
        RocketMQ."""
        if error.code == ResponseCode.MESSAGE_ILLEGAL:
            self._fail(error)
            self._fail = _ignore

    def done(self, status: PutStatus) -> None:
        if status is not PutStatus.PUT_OK:
            self._worst = status
        self._open -= 1
        if not self._open:
            self._answer(self._worst)


def _ignore(error: MQError) -> None:
    """The batch is answered already."""
