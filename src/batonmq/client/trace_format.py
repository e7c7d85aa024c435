"""The text of message traces. No I/O.

Fields are separated by ``\\x01``, traces end with ``\\x02``. Source: `TraceDataEncoder`, `TraceType`,
`MessageType` and `ConsumeReturnType` of Apache RocketMQ 5.5.
"""

from __future__ import annotations

from typing import NamedTuple

from batonmq.protocol.message.properties import split_keys
from batonmq.protocol.message.record import MessageExt

DEFAULT_REGION = "DefaultRegion"
NORMAL, HALF, COMMIT, DELAYED, ORDERED = range(5)
"""Types of messages (`MessageType`)."""
SUCCEEDED, RAISED, FAILED = 0, 2, 4
"""Outcomes of a handler (`ConsumeReturnType`)."""

FIELD = "\x01"
END = "\x02"
"""What ends a field, and a trace."""


class Trace(NamedTuple):
    """A trace, and the keys it is found by."""

    text: str
    keys: tuple[str, ...]


def publish(
    *,
    time_ms: int,
    region: str,
    group: str,
    topic: str,
    message_id: str,
    tags: str,
    keys: str,
    store_host: str,
    body_length: int,
    cost_ms: int,
    message_type: int,
    offset_message_id: str,
) -> Trace:
    """A message is sent, or several as a batch."""
    fields = (
        "Pub",
        time_ms,
        region,
        group,
        topic,
        message_id,
        tags,
        keys,
        store_host,
        body_length,
        cost_ms,
        message_type,
        offset_message_id,
        "true",
    )
    return Trace(_joined(fields), (*message_id.split(","), *split_keys(keys)))


def before_handling(time_ms: int, region: str, group: str, request: str, message: MessageExt) -> Trace:
    """A handler is called with a message."""
    keys = " ".join(message.keys)
    fields = ("SubBefore", time_ms, region, group, request, message.message_id, message.reconsume_times, keys)
    return Trace(_joined(fields), (message.message_id, *message.keys))


def after_handling(
    time_ms: int, group: str, request: str, message: MessageExt, cost_ms: int, outcome: int
) -> Trace:
    """A handler has returned or raised."""
    fields = (
        "SubAfter",
        request,
        message.message_id,
        cost_ms,
        "true" if outcome == SUCCEEDED else "false",
        " ".join(message.keys),
        outcome,
        time_ms,
        group,
    )
    return Trace(_joined(fields), (message.message_id, *message.keys))


def end_of_transaction(
    *,
    time_ms: int,
    region: str,
    group: str,
    topic: str,
    message_id: str,
    tags: str,
    keys: str,
    store_host: str,
    transaction_id: str,
    state: str,
    from_check: bool,
) -> Trace:
    """A half message is committed or rolled back, or its state is not known."""
    fields = (
        "EndTransaction",
        time_ms,
        region,
        group,
        topic,
        message_id,
        tags,
        keys,
        store_host,
        COMMIT,
        transaction_id,
        state,
        "true" if from_check else "false",
    )
    return Trace(_joined(fields), (message_id, *split_keys(keys)))


def _joined(fields: tuple[object, ...]) -> str:
    return FIELD.join(_clean(str(field)) for field in fields) + END


def _clean(text: str) -> str:
    """Without separators: a trace must not become two."""
    return text.replace(FIELD, " ").replace(END, " ")
