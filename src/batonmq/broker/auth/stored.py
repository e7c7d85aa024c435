"""Whose message a stored record is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from batonmq.protocol.message.properties import PROPERTY_REAL_TOPIC, PROPERTY_RETRY_TOPIC
from batonmq.protocol.message.record import decode_record
from batonmq.protocol.names import is_retry_topic, is_system_topic

if TYPE_CHECKING:
    from batonmq.protocol.buffers import Buffer


def topic_of(record: Buffer) -> str:
    """The topic that the message of a record was sent to. Messages that wait in a topic of the broker's, or
    in a group's retry topic, are still those of their first topic."""
    message = decode_record(record, inflate=False)
    name = message.topic
    if is_system_topic(name):
        name = message.properties.get(PROPERTY_REAL_TOPIC, name)
    if is_retry_topic(name):
        name = message.properties.get(PROPERTY_RETRY_TOPIC, name)
    return name
