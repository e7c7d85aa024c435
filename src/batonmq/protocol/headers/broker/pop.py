"""Pop consumption: the broker chooses the queue, hides what it hands out, and waits for acknowledgements.

Source: `PopMessageRequestHeader`, `AckMessageRequestHeader`, `ChangeInvisibleTimeRequestHeader`,
`NotificationRequestHeader`, `PeekMessageRequestHeader` and `PollingInfoRequestHeader` of Apache RocketMQ 5.5.
"""

from __future__ import annotations

from batonmq.protocol.codes import RequestCode
from batonmq.protocol.registry import I32, I64, BrokerHeader, Header, request


class PopMessageResponse(Header):
    """What was handed out; `protocol/pop.py` reads and writes the three texts.

    ``pop_time`` (wall ms) and ``invisible_time`` (ms) belong into every receipt; ``rest_num`` estimates how
    many messages are left. Also comes with POLLING_FULL and POLLING_TIMEOUT.
    """

    pop_time: I64
    invisible_time: I64
    revive_qid: I32
    rest_num: I64
    start_offset_info: str | None = None
    msg_offset_info: str | None = None
    order_count_info: str | None = None


@request(RequestCode.POP_MESSAGE, response=PopMessageResponse)
class PopMessage(BrokerHeader):
    """Take up to ``max_msg_nums`` (32) messages and hide them for ``invisible_time`` ms; the body is records.

    ``queue_id`` -1 means any queue. ``poll_time`` (ms, counted from ``born_time``) is how long the request
    may wait for a message. ``init_mode`` says where a group without offset begins: 0 first, 1 last message.
    ``order``: one batch of a queue at a time; a repeated ``attempt_id`` gets its batch again.
    """

    consumer_group: str
    topic: str
    queue_id: I32
    max_msg_nums: I32
    invisible_time: I64
    poll_time: I64
    born_time: I64
    init_mode: I32
    exp_type: str | None = None
    exp: str | None = None
    order: bool = False
    attempt_id: str | None = None


@request(RequestCode.ACK_MESSAGE)
class AckMessage(BrokerHeader):
    """A message is consumed. ``extra_info`` is its receipt (POP_CK); ``topic`` is where it is stored."""

    consumer_group: str
    topic: str
    queue_id: I32
    extra_info: str
    offset: I64
    lite_topic: str | None = None


@request(RequestCode.BATCH_ACK_MESSAGE)
class BatchAckMessage(Header):
    """Messages of several receipts are consumed; body `BatchAckMessageRequestBody`."""


class ChangeInvisibleTimeResponse(Header):
    """The parts of the new receipt that differ from the old one."""

    pop_time: I64
    invisible_time: I64
    revive_qid: I32


@request(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, response=ChangeInvisibleTimeResponse)
class ChangeInvisibleTime(BrokerHeader):
    """Hide a message for ``invisible_time`` ms from now on; its receipt changes.

    ``suspend``: the delivery that follows does not count as a failed attempt.
    """

    consumer_group: str
    topic: str
    queue_id: I32
    extra_info: str
    offset: I64
    invisible_time: I64
    lite_topic: str | None = None
    suspend: bool = False


class NotificationResponse(Header):
    """Whether a pop would find a message; ``polling_full``: too many requests wait already."""

    has_msg: bool
    polling_full: bool = False


@request(RequestCode.NOTIFICATION, response=NotificationResponse)
class Notification(Header):
    """Wait up to ``poll_time`` ms (counted from ``born_time``) until a pop would find a message."""

    consumer_group: str
    topic: str
    queue_id: I32
    poll_time: I64
    born_time: I64
    order: bool = False
    attempt_id: str | None = None
    exp_type: str | None = None
    exp: str | None = None


@request(RequestCode.PEEK_MESSAGE, response=PopMessageResponse)
class PeekMessage(Header):
    """Messages that a pop would find now; they stay visible."""

    topic: str
    queue_id: I32
    max_msg_nums: I32
    consumer_group: str


class PollingInfoResponse(Header):
    """How many pops wait."""

    polling_num: I32


@request(RequestCode.POLLING_INFO, response=PollingInfoResponse)
class PollingInfo(Header):
    """How many pops of a group wait for messages of a queue (-1: of any queue)."""

    consumer_group: str
    topic: str
    queue_id: I32
