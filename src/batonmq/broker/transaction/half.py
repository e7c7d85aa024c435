"""Half messages: how they are stored, committed, checked and put back. Pure.

Source: RocketMQ's `TransactionalMessageBridge`, `EndTransactionProcessor` and
`AbstractTransactionalMessageCheckListener`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

from batonmq.broker.transaction.batch import check_batch, is_batch, rest_of_batch
from batonmq.protocol.codes import MessageSysFlag
from batonmq.protocol.message.errors import MessageFormatError
from batonmq.protocol.message.properties import (
    MAX_PROPERTIES_BYTES,
    PROPERTY_CHECK_IMMUNITY_TIME_S,
    PROPERTY_DELAY_LEVEL,
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_TRANSACTION_CHECK_TIMES,
    PROPERTY_TRANSACTION_ID,
    PROPERTY_TRANSACTION_PREPARED,
    PROPERTY_TRANSACTION_PREPARED_QUEUE_OFFSET,
    PROPERTY_UNIQUE_KEY,
    TIMER_PROPERTIES,
    encode_properties,
    is_encoding,
)
from batonmq.protocol.message.record import MessageExt, StoredMessage, encode_record, message_of, moved
from batonmq.protocol.names import TRANS_CHECK_MAX_TIME_TOPIC, TRANS_HALF_TOPIC

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from batonmq.broker.config import BrokerConfig

HALF_QUEUE: Final = 0
ROOM: Final = 128
"""Bytes of properties that a half message must leave free for the properties of a copy."""
LATER: Final = frozenset((PROPERTY_DELAY_LEVEL, *TIMER_PROPERTIES))
"""Properties by which a message is delivered some time after its commit."""
PUT_BACK_AFTER_MS: Final = 600_000
"""Age from which a checked message is stored again at the end of the queue. RocketMQ stores it again at every
check. Here a message stays in place, because the window remembers it. It is moved only if it would hold back
the offset and the deletion of old files for long. With RocketMQ's defaults every message is given up before
that."""
_MASK: Final = MessageSysFlag.TRANSACTION_MASK
_COMMIT: Final = MessageSysFlag.TRANSACTION_COMMIT


def is_prepared(message: StoredMessage, properties: Mapping[str, str]) -> bool:
    """Whether a message that is to be stored is a half message.

    A committed message that is stored again, for a group that failed to handle it, still has the property if
    a RocketMQ broker has committed it.
    """
    if properties.get(PROPERTY_TRANSACTION_PREPARED, "").lower() != "true":
        return False
    if message.sys_flag & _MASK == _COMMIT:
        return False
    # Consumers of clients before 4.6.1 resend a committed message in this form.
    return not (message.reconsume_times > 0 and number_of(properties, PROPERTY_DELAY_LEVEL, 0) > 0)


_SET_HERE: Final = frozenset(
    {
        PROPERTY_REAL_TOPIC,
        PROPERTY_REAL_QUEUE_ID,
        PROPERTY_TRANSACTION_ID,
        PROPERTY_TRANSACTION_PREPARED_QUEUE_OFFSET,
    }
)
"""Properties that the broker gives a half message; what a sender says in them does not count."""


def to_half(message: StoredMessage, properties: Mapping[str, str]) -> StoredMessage:
    """The message as stored in the half queue. Raises `MessageFormatError` if its properties become too long,
    or leave no room for a copy to name the first one: both could be committed then."""
    if is_batch(properties):
        check_batch(message, properties)
    unique_key = properties.get(PROPERTY_UNIQUE_KEY)
    added = {PROPERTY_REAL_TOPIC: message.topic, PROPERTY_REAL_QUEUE_ID: str(message.queue_id)}
    if unique_key:
        added[PROPERTY_TRANSACTION_ID] = unique_key
    if _SET_HERE.isdisjoint(properties) and is_encoding(message.properties, properties):
        encoded = message.properties + encode_properties(added)  # what was decoded need not be encoded again
    else:
        stored = {**properties, **added}
        stored.pop(PROPERTY_TRANSACTION_PREPARED_QUEUE_OFFSET, None)  # only the broker may mark it as a copy
        encoded = encode_properties(stored)
    if len(encoded) > MAX_PROPERTIES_BYTES - ROOM:
        raise MessageFormatError(f"properties of {len(encoded)} bytes leave no room for those of a copy")
    return moved(message, TRANS_HALF_TOPIC, HALF_QUEUE, encoded, message.sys_flag & ~_MASK)


def real_place(record: MessageExt) -> tuple[str, int] | None:
    """(topic, queue) that a half message is for; None if it does not name them."""
    topic = record.properties.get(PROPERTY_REAL_TOPIC)
    queue_id = record.properties.get(PROPERTY_REAL_QUEUE_ID, "")
    if not topic or not (queue_id.isascii() and queue_id.isdigit() and len(queue_id) < 10):
        return None
    return topic, int(queue_id)


def to_committed(
    record: MessageExt, place: tuple[str, int], delivered: int = 0
) -> tuple[StoredMessage, dict[str, str]]:
    """The message for its real topic, and its properties. `record` must be decoded without inflating its
    body. For a batch: all its messages except the first `delivered`, without properties. Raises
    `MessageFormatError`."""
    properties = dict(record.properties)
    for name in (
        PROPERTY_REAL_TOPIC,
        PROPERTY_REAL_QUEUE_ID,
        PROPERTY_TRANSACTION_PREPARED,
        PROPERTY_TRANSACTION_PREPARED_QUEUE_OFFSET,
    ):
        properties.pop(name, None)
    message = message_of(record, topic=place[0], queue_id=place[1], properties=properties)
    message.sys_flag = record.sys_flag & ~_MASK | _COMMIT
    message.prepared_transaction_offset = record.physical_offset
    if is_batch(properties):
        message.batch = True
        message.body = rest_of_batch(record.body, delivered)
        return message, {}
    return message, properties


def to_half_again(record: MessageExt, checks: int) -> StoredMessage:
    """A half message for the end of the half queue, with its number of checks and the offset of the first
    copy."""
    properties = dict(record.properties)
    properties[PROPERTY_TRANSACTION_CHECK_TIMES] = str(checks)
    properties.setdefault(PROPERTY_TRANSACTION_PREPARED_QUEUE_OFFSET, str(record.queue_offset))
    return _copy(record, (TRANS_HALF_TOPIC, HALF_QUEUE), properties)


def to_resumed(record: MessageExt) -> StoredMessage:
    """A half message that was given up, for the half queue, with its number of checks reset."""
    properties = dict(record.properties)
    properties[PROPERTY_TRANSACTION_CHECK_TIMES] = "0"
    properties.pop(PROPERTY_TRANSACTION_PREPARED_QUEUE_OFFSET, None)
    return _copy(record, (TRANS_HALF_TOPIC, HALF_QUEUE), properties)


def to_given_up(record: MessageExt, checks: int) -> StoredMessage:
    """A half message for TRANS_CHECK_MAX_TIME_TOPIC."""
    properties = {**record.properties, PROPERTY_TRANSACTION_CHECK_TIMES: str(checks)}
    return _copy(record, (TRANS_CHECK_MAX_TIME_TOPIC, 0), properties)


def _copy(record: MessageExt, place: tuple[str, int], properties: Mapping[str, str]) -> StoredMessage:
    """The record with `properties`, or with its own properties if those are too long."""
    topic, queue_id = place
    try:
        return message_of(record, topic=topic, queue_id=queue_id, properties=properties)
    except MessageFormatError:
        return message_of(record, topic=topic, queue_id=queue_id, properties=record.properties)


def check_body(
    record: MessageExt, place: tuple[str, int], checks: int, *, queue_offset: int, physical_offset: int
) -> bytes:
    """The record that a producer receives with a check: with its real topic, at the given half offsets. A
    batch has no body here, because its producer needs only the properties, and the body may be large."""
    properties = {**record.properties, PROPERTY_TRANSACTION_CHECK_TIMES: str(checks)}
    message = _copy(record, place, properties)
    if is_batch(record.properties):
        message.body = b""
    return encode_record(
        message,
        queue_offset=queue_offset,
        physical_offset=physical_offset,
        store_timestamp=record.store_timestamp,
    )


# -- what a check does


class Verdict(Enum):
    """What a check does with an undecided half message."""

    WAIT = auto()
    """Leave it: it is too young."""
    PUT_BACK = auto()
    """Store it again: it is too young for a check, but old enough to hold back the offset."""
    CHECK = auto()
    CHECK_AND_PUT_BACK = auto()
    GIVE_UP = auto()
    """Move it to TRANS_CHECK_MAX_TIME_TOPIC."""


@dataclass(frozen=True, slots=True)
class CheckRules:
    """The configuration of one round of checks; times in ms."""

    timeout_ms: int
    check_max: int
    reserved_ms: int
    """How long the log is kept (`fileReservedTime`)."""
    doubted_ms: int = 0
    """See `MessageStore.doubted_ms`: it makes no message too old for the log."""

    @classmethod
    def of(cls, config: BrokerConfig, file_reserved_hours: int, doubted_ms: int) -> CheckRules:
        reserved_ms = file_reserved_hours * 3_600_000
        return cls(config.transaction_time_out, config.transaction_check_max, reserved_ms, doubted_ms)


def number_of(properties: Mapping[str, str], name: str, default: int) -> int:
    """A property that is a whole number of at most 18 digits; `default` if it is missing or anything else."""
    text = properties.get(name, "")
    digits = text[1:] if text[:1] == "-" else text
    return int(text) if digits.isascii() and digits.isdigit() and len(digits) <= 18 else default


def immunity_ms(properties: Mapping[str, str], timeout_ms: int) -> int:
    """Age from which a half message is checked: its own (CHECK_IMMUNITY_TIME_IN_SECONDS) or
    `transactionTimeOut`."""
    if PROPERTY_CHECK_IMMUNITY_TIME_S not in properties:
        return timeout_ms
    seconds = number_of(properties, PROPERTY_CHECK_IMMUNITY_TIME_S, -1)
    return timeout_ms if seconds == -1 else seconds * 1000


def ends_too_late(record: MessageExt, now_ms: int, timeout_ms: int) -> bool:
    """Whether a producer may end this transaction only in answer to a check: its own immunity time is
    over."""
    if not record.properties.get(PROPERTY_CHECK_IMMUNITY_TIME_S):
        return False
    seconds = max(0, number_of(record.properties, PROPERTY_CHECK_IMMUNITY_TIME_S, 0))
    return now_ms - record.born_timestamp > max(seconds * 1000, timeout_ms)


def checks_of(record: MessageExt, here: int) -> int:
    """Checks so far: those in the record, and those since it was stored."""
    return max(0, number_of(record.properties, PROPERTY_TRANSACTION_CHECK_TIMES, 0)) + here


def verdict(
    record: MessageExt, here: int, most_here: int, now_ms: int, rules: CheckRules, *, known_ms: int = 0
) -> Verdict:
    """`here`: checks by this master, which can count up to `most_here`. `known_ms`: how long this master has
    known the message, in case the clock of the former master was ahead.

    Ages count from the store time, because producers' clocks may be wrong. For a copy the born time counts
    too, because its store time is later than that of the first one.
    """
    checks = checks_of(record, here)
    age_ms = max(now_ms - record.store_timestamp, known_ms)
    born_ms = now_ms - record.born_timestamp
    copied = checks > here or PROPERTY_TRANSACTION_PREPARED_QUEUE_OFFSET in record.properties
    kept_ms = max(now_ms - rules.doubted_ms - record.store_timestamp, known_ms)
    if copied:
        kept_ms = max(kept_ms, born_ms - rules.doubted_ms)
    if checks >= rules.check_max or kept_ms > rules.reserved_ms:
        return Verdict.GIVE_UP
    waited_ms = max(age_ms, born_ms) if copied else age_ms
    from_the_future = copied and born_ms < 0
    old = age_ms > PUT_BACK_AFTER_MS or here >= most_here
    if waited_ms <= immunity_ms(record.properties, rules.timeout_ms) and not from_the_future:
        return Verdict.PUT_BACK if old else Verdict.WAIT
    return Verdict.CHECK_AND_PUT_BACK if old else Verdict.CHECK


def first_copy(record: MessageExt) -> int | None:
    """Queue offset of the first copy of a half message that was stored again; None for the first one."""
    offset = number_of(record.properties, PROPERTY_TRANSACTION_PREPARED_QUEUE_OFFSET, -1)
    return offset if 0 <= offset < record.queue_offset else None


# -- op messages

OP_TAG: Final = "d"


def op_body(offsets: Iterable[int]) -> bytes:
    """Offsets, each followed by a comma, as RocketMQ writes them."""
    return "".join([f"{offset}," for offset in offsets]).encode()


def offsets_of(body: bytes) -> list[int]:
    """The half offsets that an op message names; invalid numbers are left out."""
    return [int(part) for part in body.split(b",") if part.isdigit() and len(part) <= 18]
