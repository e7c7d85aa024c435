"""Requests of pop consumption, sent to the current master."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from batonmq.client.pop.received import batch_acks, fits_a_batch, popped, receipt_of
from batonmq.client.push.tasks import log
from batonmq.client.session import ClientSession
from batonmq.net.errors import ConnectFailed, NetError
from batonmq.protocol.bodies.clients import ConsumeFromWhere, SubscriptionData
from batonmq.protocol.bodies.pop import BatchAckMessageRequestBody
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.pop import (
    AckMessage,
    BatchAckMessage,
    ChangeInvisibleTime,
    ChangeInvisibleTimeResponse,
    Notification,
    NotificationResponse,
    PopMessage,
    PopMessageResponse,
)
from batonmq.protocol.headers.broker.send import ConsumerSendMsgBack
from batonmq.protocol.json import encode
from batonmq.protocol.message.properties import PROPERTY_POP_CK
from batonmq.protocol.message.record import MessageExt
from batonmq.protocol.pop import Receipt
from batonmq.protocol.tags import matches

POLL_MARGIN_MS = 10_000
"""How much longer than the poll time the answer of a long poll may take."""
ANY_QUEUE = -1
"""Queue id of a broker that is popped as a whole."""
TO_DEAD_LETTERS = -1
"""The delay level that means the dead letter topic (`CONSUMER_SEND_MSG_BACK`)."""

_NOTHING = frozenset(
    {
        int(ResponseCode.PULL_NOT_FOUND),
        int(ResponseCode.POLLING_TIMEOUT),
        int(ResponseCode.NO_MESSAGE),
    }
)


@dataclass(frozen=True, slots=True)
class PopOptions:
    """How a consumer pops."""

    from_where: ConsumeFromWhere
    ordered: bool


class PopRequests:
    """One group's requests."""

    def __init__(self, session: ClientSession, group: str, options: PopOptions) -> None:
        self._session = session
        self._group = group
        self._options = options

    async def pop(
        self,
        broker_name: str,
        subscription: SubscriptionData,
        *,
        count: int,
        invisible_ms: int,
        poll_ms: int = 0,
        attempt_id: str | None = None,
    ) -> list[MessageExt]:
        """Messages of one broker; empty when there are none within ``poll_ms``.

        Messages that only share the hash code of a tag are acknowledged and left out. Raises `MQError`
        (POLLING_FULL: too many wait there), `NetError`, `MessageFormatError`.
        """
        topic = subscription.topic
        first = self._options.from_where is ConsumeFromWhere.FIRST_OFFSET
        header = PopMessage(
            consumer_group=self._group,
            topic=topic,
            queue_id=ANY_QUEUE,
            max_msg_nums=count,
            invisible_time=invisible_ms,
            poll_time=poll_ms,
            born_time=self._session.clock.now_ms(),
            init_mode=0 if first else 1,
            exp_type=subscription.expression_type,
            exp=subscription.sub_string,
            order=self._options.ordered,
            attempt_id=attempt_id,
            broker_name=broker_name,
        )
        try:
            answer = await self._session.net.call(
                self._master(topic, broker_name), header, timeout_ms=poll_ms + POLL_MARGIN_MS
            )
        except MQError as error:
            if error.code in _NOTHING:
                return []
            raise
        assert isinstance(answer.header, PopMessageResponse)
        messages = popped(answer.header, answer.body, topic, broker_name)
        wanted = [message for message in messages if matches(subscription, message.tags)]
        if len(wanted) < len(messages):
            try:
                await self.ack([message for message in messages if not matches(subscription, message.tags)])
            except (NetError, MQError) as error:
                log.info(
                    "messages with other tags could not be acknowledged and will be delivered again: %s",
                    error,
                )
        return wanted

    async def has_messages(
        self,
        broker_name: str,
        subscription: SubscriptionData,
        poll_ms: int,
        attempt_id: str | None = None,
    ) -> bool:
        """Whether a pop of this broker would bring something, now or within ``poll_ms``.

        Raises `MQError` (POLLING_FULL: too many wait there) and `NetError`.
        """
        header = Notification(
            consumer_group=self._group,
            topic=subscription.topic,
            queue_id=ANY_QUEUE,
            poll_time=poll_ms,
            born_time=self._session.clock.now_ms(),
            order=self._options.ordered,
            attempt_id=attempt_id,
            exp_type=subscription.expression_type,
            exp=subscription.sub_string,
        )
        answer = await self._session.net.call(
            self._master(subscription.topic, broker_name), header, timeout_ms=poll_ms + POLL_MARGIN_MS
        )
        assert isinstance(answer.header, NotificationResponse)
        if answer.header.polling_full and not answer.header.has_msg:
            raise MQError(ResponseCode.POLLING_FULL, f"too many consumers wait at {broker_name}")
        return answer.header.has_msg

    async def ack(self, messages: Iterable[MessageExt], *, timeout_ms: int = 3_000) -> None:
        """The messages are consumed; in one request for each broker.

        Raises ValueError for a message without receipt, and the first `MQError` or `NetError` after all
        brokers were asked.
        """
        by_broker: dict[str, list[tuple[str, Receipt]]] = {}
        for message in messages:
            receipt = receipt_of(message)
            by_broker.setdefault(receipt.broker_name, []).append((message.topic, receipt))
        outcomes = await asyncio.gather(
            *(self._ack(name, acks, timeout_ms) for name, acks in by_broker.items()), return_exceptions=True
        )
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def _ack(self, broker_name: str, acks: list[tuple[str, Receipt]], timeout_ms: int) -> None:
        together = [ack for ack in acks if fits_a_batch(ack[1])] if len(acks) > 1 else []
        if together:
            body = encode(BatchAckMessageRequestBody(broker_name, batch_acks(self._group, together)))
            topic = together[0][0]
            await self._session.call_master(
                broker_name, topic, BatchAckMessage(), body, timeout_ms=timeout_ms
            )
        for topic, receipt in acks:
            if together and fits_a_batch(receipt):
                continue
            header = AckMessage(
                consumer_group=self._group,
                topic=receipt.stored_topic(topic, self._group),
                queue_id=receipt.queue_id,
                extra_info=str(receipt),
                offset=receipt.offset,
            )
            await self._session.call_master(broker_name, topic, header, timeout_ms=timeout_ms)

    async def change_invisible(
        self, message: MessageExt, invisible_ms: int, *, timeout_ms: int = 3_000, suspend: bool = False
    ) -> None:
        """Hide a message for so long from now on. Its receipt, in the message, is replaced.

        Raises ValueError for a message without receipt, `MQError`, `NetError`.
        """
        receipt = receipt_of(message)
        header = ChangeInvisibleTime(
            consumer_group=self._group,
            topic=receipt.stored_topic(message.topic, self._group),
            queue_id=receipt.queue_id,
            extra_info=str(receipt),
            offset=receipt.offset,
            invisible_time=invisible_ms,
            suspend=suspend,
        )
        answer = await self._session.call_master(
            receipt.broker_name, message.topic, header, timeout_ms=timeout_ms
        )
        changed = answer.header
        assert isinstance(changed, ChangeInvisibleTimeResponse)
        if not changed.pop_time:
            return  # RocketMQ's answer for a message of an ordered pop that was acknowledged before
        renewed = receipt._replace(
            start_offset=receipt.offset,
            pop_time=changed.pop_time,
            invisible_time=changed.invisible_time,
            revive_queue=changed.revive_qid,
        )
        message.properties[PROPERTY_POP_CK] = str(renewed)

    async def to_dead_letters(self, message: MessageExt, *, timeout_ms: int = 3_000) -> None:
        """Store a message in the group's dead letter topic; it is still to be acknowledged.

        Raises `MQError`, `NetError`.
        """
        receipt = receipt_of(message)
        header = ConsumerSendMsgBack(
            offset=message.physical_offset,
            group=self._group,
            delay_level=TO_DEAD_LETTERS,
            origin_msg_id=message.message_id,
            origin_topic=receipt.stored_topic(message.topic, self._group),
            max_reconsume_times=0,
        )
        await self._session.call_master(receipt.broker_name, message.topic, header, timeout_ms=timeout_ms)

    def _master(self, topic: str, broker_name: str) -> str:
        route = self._session.known_route(topic)
        address = route.master(broker_name) if route is not None else None
        if address is None:
            raise ConnectFailed(broker_name, "has no master")
        return address
