"""The topic that a stored record was sent to, whose rights decide."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from batonmq.protocol.message.properties import (
    PROPERTY_ORIGIN_GROUP,
    PROPERTY_REAL_TOPIC,
    PROPERTY_RETRY_TOPIC,
    find_property,
)
from batonmq.protocol.names import RETRY_PREFIX, TRANS_HALF_TOPIC, is_retry_topic, is_system_topic
from batonmq.store.errors import StoreError
from batonmq.store.scan import read_records

if TYPE_CHECKING:
    from batonmq.store.scan import Record
    from batonmq.store.store import MessageStore

_SEPARATORS: Final = ("_", "+")
"""Between group and topic in the names of pop retry topics, of version 1 and 2."""


def topic_at(store: MessageStore, offset: int) -> str | None:
    """The topic that the message at a commit log offset was sent to; None if no confirmed one is there.

    Messages that wait in a topic of the broker's, or in a group's retry topic, are still those of their first
    topic."""
    view = store.message_at(offset)
    record = None if view is None else next(read_records(view, 0, len(view)), None)
    if record is None:
        return None
    name = record.topic
    if is_system_topic(name):
        name = _property(record, PROPERTY_REAL_TOPIC) or name
    if is_retry_topic(name):
        name = _property(record, PROPERTY_RETRY_TOPIC) or _popped_topic(record, name)
    return name


def half_topic_at(store: MessageStore, offset: int) -> str | None:
    """The topic that the half message at a commit log offset is for, confirmed or not; None if there is
    none."""
    try:
        view = store.read(offset, store.config.mapped_file_size_commit_log)
    except StoreError:
        return None
    record = next(read_records(view, 0, len(view)), None)
    if record is None or record.physical_offset != offset or record.topic != TRANS_HALF_TOPIC:
        return None
    if not store.has_record(record.topic, record.queue_id, record.queue_offset, offset):
        return None
    return _property(record, PROPERTY_REAL_TOPIC)


def _property(record: Record, name: str) -> str | None:
    value = find_property(record.properties, name.encode())
    return None if value is None else value.decode("utf-8", "replace")


def _popped_topic(record: Record, retry_topic: str) -> str:
    """The topic of a message that was popped and not acknowledged: its retry topic has group and topic in its
    name."""
    own = RETRY_PREFIX + (_property(record, PROPERTY_ORIGIN_GROUP) or "")
    rest = retry_topic.removeprefix(own)
    return rest[1:] if own != RETRY_PREFIX and rest.startswith(_SEPARATORS) and rest[1:] else retry_topic
