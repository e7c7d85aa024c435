"""The answer to a pop: the records with their receipts. No I/O, except for the log.

Source: `MQClientAPIImpl.processPopResponse` of Apache RocketMQ 5.5.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from batonmq.protocol.bodies.pop import BatchAck, bit_set_of
from batonmq.protocol.buffers import Buffer
from batonmq.protocol.compression import CompressionError
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.pop import PopMessageResponse
from batonmq.protocol.message.errors import MessageFormatError
from batonmq.protocol.message.properties import PROPERTY_FIRST_POP_TIME, PROPERTY_POP_CK
from batonmq.protocol.message.record import MessageExt, decode_records, inflate
from batonmq.protocol.pop import (
    NORMAL,
    Receipt,
    parse_msg_offset_info,
    parse_order_count_info,
    parse_receipt,
    parse_start_offset_info,
    queue_offset_key,
    retry_flag,
)

log = logging.getLogger("batonmq.client.consumer")

MAX_BATCH_SPAN = 4096 * 8
"""Offsets that one `BatchAck` can cover (`MAX_BIT_SET_BYTES`)."""


def receipt_of(message: MessageExt) -> Receipt:
    """The receipt of a popped message. Raises ValueError for a message that was not popped."""
    text = message.properties.get(PROPERTY_POP_CK)
    if text is None:
        raise ValueError(f"message {message.message_id} was not received by a pop: it has no receipt")
    return parse_receipt(text)


def popped(answer: PopMessageResponse, records: Buffer, topic: str, broker_name: str) -> list[MessageExt]:
    """The messages of an answer, with `POP_CK` and the topic that was asked for.

    Raises:
        MessageFormatError: the parts of the answer do not fit together.

    Messages whose bodies do not inflate are left out. They come again and become dead letters in the end,
    and do not take those along that were popped with them.
    """
    try:
        starts = parse_start_offset_info(answer.start_offset_info)
        offsets = parse_msg_offset_info(answer.msg_offset_info)
        counts = parse_order_count_info(answer.order_count_info)
    except ValueError as error:
        raise MessageFormatError(f"the offsets of a pop's answer: {error}") from None
    known = {place: frozenset(listed) for place, listed in offsets.items()}
    messages = decode_records(records, inflate=False)
    first: dict[tuple[str, int], int] = {}
    for message in messages:
        receipt = _rewritten(message, known)
        if receipt is None:
            place = retry_flag(message.topic), message.queue_id
            if starts:
                if place not in starts or message.queue_offset not in known.get(place, ()):
                    raise MessageFormatError(
                        f"a pop's answer has message {message.queue_offset} of queue {message.queue_id} "
                        f"of {message.topic}, but no receipt for it"
                    )
                start = starts[place]
            else:
                start = first.setdefault(place, message.queue_offset)
            receipt = Receipt(
                start,
                answer.pop_time,
                answer.invisible_time,
                answer.revive_qid,
                place[0],
                broker_name,
                message.queue_id,
                message.queue_offset,
            )
            message.properties[PROPERTY_POP_CK] = str(receipt)
        count = counts.get((receipt.retry, queue_offset_key(receipt.queue_id, receipt.offset)))
        if count is None:
            count = counts.get((receipt.retry, str(receipt.queue_id)))
        if count:
            message.reconsume_times = count
        message.properties.setdefault(PROPERTY_FIRST_POP_TIME, str(answer.pop_time))
        message.topic = topic
    return [message for message in messages if _inflated(message)]


def _inflated(message: MessageExt) -> bool:
    """Inflate the body; False if it cannot be."""
    try:
        inflate(message)
    except CompressionError as error:
        log.error("message %s of %s cannot be read: %s", message.message_id, message.topic, error)
        return False
    return True


def _rewritten(message: MessageExt, known: dict[tuple[str, int], frozenset[int]]) -> Receipt | None:
    """The receipt that the broker wrote into a message of a retry topic, whose topic it replaced.

    None for others: a sender may have set the property, too, so it must fit the rest of the answer.
    """
    text = message.properties.get(PROPERTY_POP_CK)
    if text is None:
        return None
    try:
        receipt = parse_receipt(text)
    except MQError:
        return None
    if receipt.retry == NORMAL or receipt.offset not in known.get((receipt.retry, receipt.queue_id), ()):
        return None
    return receipt


def batch_acks(group: str, acks: Iterable[tuple[str, Receipt]]) -> list[BatchAck]:
    """Acks of (topic, receipt) on one broker, those of one check point together; see `fits_a_batch`."""
    batches: dict[tuple[str, Receipt], set[int]] = {}
    for topic, receipt in acks:
        difference = receipt.offset - receipt.start_offset
        batches.setdefault((topic, receipt._replace(offset=0)), set()).add(difference)
    return [
        BatchAck(
            consumer_group=group,
            topic=topic,
            retry=common.retry,
            start_offset=common.start_offset,
            queue_id=common.queue_id,
            revive_queue_id=common.revive_queue,
            pop_time=common.pop_time,
            invisible_time=common.invisible_time,
            bit_set=bit_set_of(sorted(differences)),
        )
        for (topic, common), differences in batches.items()
    ]


def fits_a_batch(receipt: Receipt) -> bool:
    """A bit set can name the message: it does not lie too far behind the start of its check point."""
    return 0 <= receipt.offset - receipt.start_offset < MAX_BATCH_SPAN
