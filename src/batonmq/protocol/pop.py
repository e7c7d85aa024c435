"""Receipts of popped messages, and the texts of a pop's answer from which clients make them.

A receipt (property ``POP_CK``, ``extraInfo`` of acks) is eight values with blanks between: start of the check
point, pop time (wall ms), invisible time (ms), revive queue, retry flag, broker name, queue id, offset of the
message.
Source: `ExtraInfoUtil` and `KeyBuilder` of Apache RocketMQ 5.5.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.names import RETRY_PREFIX, pop_retry_topic

ORDER_REVIVE_QUEUE: Final = 999
"""The revive queue of an ordered pop's receipt: its state is no check point."""
MAX_MESSAGES: Final = 32
"""Of one pop."""
NORMAL, RETRY_V1, RETRY_V2 = "0", "1", "2"
"""Retry flags: which topic a message is stored in."""
_MAX_I64: Final = 2**63 - 1
_MAX_I32: Final = 2**31 - 1


class Receipt(NamedTuple):
    """What a consumer needs to acknowledge a message. ``pop_time`` is wall ms, ``invisible_time`` ms."""

    start_offset: int
    pop_time: int
    invisible_time: int
    revive_queue: int
    retry: str
    broker_name: str
    queue_id: int
    offset: int

    def __str__(self) -> str:
        return " ".join(map(str, self))

    @property
    def ordered(self) -> bool:
        return self.revive_queue == ORDER_REVIVE_QUEUE

    def stored_topic(self, topic: str, group: str) -> str:
        """The topic that holds the message, given the one that was asked for."""
        return topic_of(self.retry, topic, group)


_VALUES: Final = 8
MAX_RECEIPT: Final = 1_024
"""Characters; seven numbers and the name of a broker."""


def parse_receipt(text: str) -> Receipt:
    """Raises `MQError` (INVALID_PARAMETER) unless the text begins with a receipt.

    RocketMQ's proxy appends the message's physical offset. What follows a receipt has no meaning for brokers,
    RocketMQ's or ours (`ExtraInfoUtil`).
    """
    try:
        if len(text) > MAX_RECEIPT:
            raise ValueError
        if text.count(" ") >= _VALUES:
            text = " ".join(text.split(" ", _VALUES)[:_VALUES])
        batch, _, offset = text.rpartition(" ")
        return Receipt(*_parse_batch(batch), _number(offset, _MAX_I64))
    except ValueError:
        raise MQError(ResponseCode.INVALID_PARAMETER, f"no receipt of a pop: {text[:200]!r}") from None


@lru_cache(maxsize=4096)
def _parse_batch(text: str) -> tuple[int, int, int, int, str, str, int]:
    """All but the last value, which the receipts of one batch share. Raises ValueError."""
    start, pop_time, invisible, revive, retry, broker, queue = text.split(" ")
    return (
        _number(start, _MAX_I64),
        _number(pop_time, _MAX_I64),
        _number(invisible, _MAX_I64),
        _number(revive, _MAX_I32),
        retry,
        broker,
        _number(queue, _MAX_I32),
    )


def _number(text: str, greatest: int) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 19:
        raise ValueError
    value = int(text)
    if value > greatest:
        raise ValueError
    return value


def retry_flag(topic: str) -> str:
    """The retry flag of a stored message's topic."""
    if not topic.startswith(RETRY_PREFIX):
        return NORMAL
    return RETRY_V2 if "+" in topic else RETRY_V1


def topic_of(retry: str, topic: str, group: str) -> str:
    """The topic that holds a message with this retry flag. Raises `MQError` for an unknown flag."""
    if retry == NORMAL:
        return topic
    if retry in (RETRY_V1, RETRY_V2):
        return pop_retry_topic(group, topic, v2=retry == RETRY_V2)
    raise MQError(ResponseCode.INVALID_PARAMETER, f"unknown retry flag {retry[:20]!r} of a pop")


def start_offset_info(batches: Iterable[tuple[str, int, int]]) -> str:
    """``flag queue offset;…`` of (retry flag, queue id, offset of the check point)."""
    return ";".join([f"{flag} {queue} {offset}" for flag, queue, offset in batches])


def msg_offset_info(batches: Iterable[tuple[str, int, Sequence[int]]]) -> str:
    """``flag queue o1,o2;…`` of (retry flag, queue id, offsets of the messages)."""
    return ";".join([f"{flag} {queue} {','.join(map(str, offsets))}" for flag, queue, offsets in batches])


def parse_start_offset_info(text: str | None) -> dict[tuple[str, int], int]:
    """(retry flag, queue id) -> offset of the check point. Raises `ValueError` for another text."""
    return {(flag, int(queue)): int(offset) for flag, queue, offset in _triples(text)}


def parse_msg_offset_info(text: str | None) -> dict[tuple[str, int], list[int]]:
    """(retry flag, queue id) -> offsets of the messages, in the answer's order. Raises `ValueError`."""
    return {
        (flag, int(queue)): [int(each) for each in offsets.split(",")]
        for flag, queue, offsets in _triples(text)
    }


def parse_order_count_info(text: str | None) -> dict[tuple[str, str], int]:
    """(retry flag, ``queue`` or ``qo<queue>%<offset>``) -> how often consumed before. Raises `ValueError`."""
    return {(flag, key): int(count) for flag, key, count in _triples(text)}


def queue_offset_key(queue_id: int, offset: int) -> str:
    """How `parse_order_count_info` names one message."""
    return f"qo{queue_id}%{offset}"


def _triples(text: str | None) -> list[tuple[str, str, str]]:
    found = []
    for piece in (text or "").split(";"):
        if piece:
            flag, queue, value = piece.split(" ")
            found.append((flag, queue, value))
    return found
