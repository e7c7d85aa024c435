"""Batches as half messages: one half message whose body is a wire batch, delivered as its messages. Pure.

Private to this implementation (PREPARE_BATCH). The committed messages are consecutive in the log, and each
names the half message. So a log that ends within the batch shows how many messages are still to be delivered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from batonmq.protocol.codes import MessageSysFlag
from batonmq.protocol.message.batch import scan_batch
from batonmq.protocol.message.errors import MessageFormatError
from batonmq.protocol.message.properties import (
    PROPERTY_TRANSACTION_BATCH,
    PROPERTY_UNIQUE_KEY,
    find_value,
    property_start,
)
from batonmq.protocol.names import RETRY_PREFIX

if TYPE_CHECKING:
    from collections.abc import Mapping

    from batonmq.protocol.buffers import Buffer
    from batonmq.protocol.message.record import MessageExt, StoredMessage

_UNIQUE_KEY: Final = property_start(PROPERTY_UNIQUE_KEY)


def is_batch(properties: Mapping[str, str]) -> bool:
    """Whether a half message with these properties is a batch."""
    return PROPERTY_TRANSACTION_BATCH in properties


def rows_of(properties: Mapping[str, str]) -> int:
    """How many messages a half message with these properties becomes, if it is a batch; else 0."""
    text = properties.get(PROPERTY_TRANSACTION_BATCH, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


def check_batch(message: StoredMessage, properties: Mapping[str, str]) -> None:
    """Raises `MessageFormatError` for a half message that could not be delivered as a batch."""
    if message.sys_flag & MessageSysFlag.COMPRESSED:
        raise MessageFormatError("a batch cannot be compressed")
    if message.topic.startswith(RETRY_PREFIX):
        raise MessageFormatError("a batch cannot be for a retry topic")
    body = bytes(message.body)
    items = scan_batch(body)
    if properties[PROPERTY_TRANSACTION_BATCH] != str(len(items)):
        raise MessageFormatError(f"the batch has {len(items)} messages and claims another number")
    keys = [find_value(body[tail + 2 : end], _UNIQUE_KEY) or b"" for _, _, tail, end in items]
    if not all(keys) or not _is_text(b" ".join(keys)):
        # Without it a log that ends within the batch would not show how much of it is delivered.
        raise MessageFormatError("not each message of the batch has a unique key")
    if keys[0].decode() != properties.get(PROPERTY_UNIQUE_KEY):
        raise MessageFormatError("the batch does not have the unique key of its first message")


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def rest_of_batch(body: Buffer, delivered: int) -> Buffer:
    """The batch without its first `delivered` messages. Raises `MessageFormatError`."""
    if not delivered:
        return body
    return memoryview(body)[scan_batch(body)[delivered - 1][3] :]


class DeliveredRows:
    """Counts the messages of one committed batch in a log, in the order of the log."""

    def __init__(self, half: MessageExt) -> None:
        """Raises `MessageFormatError`."""
        self.half = half
        self.count = 0
        body = half.body
        self._keys = [find_value(body[tail + 2 : end], _UNIQUE_KEY) for _, _, tail, end in scan_batch(body)]

    @property
    def whole(self) -> bool:
        return self.count == len(self._keys)

    def read(self, unique_key: str) -> None:
        """The log's next message that names this half message has this unique key."""
        if not self.whole and self._keys[self.count] == unique_key.encode():
            self.count += 1
