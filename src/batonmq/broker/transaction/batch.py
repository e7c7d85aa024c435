"""Batches as half messages: one half message whose body is a wire batch, delivered as its messages. Pure.

Private to this implementation (PREPARE_BATCH). The committed messages are consecutive in the log, and each
names the half message. So a log that ends within the batch shows how many messages are still to be delivered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

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
from batonmq.store.batch_columns import BatchColumns, batch_columns, tails_as_rows

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
    body = message.body
    columns = batch_columns(body)
    if columns is not None and (first_key := _first_key(body, columns)):
        count = len(columns.first)
    else:
        count, first_key = _check_each(bytes(body))
    if properties[PROPERTY_TRANSACTION_BATCH] != str(count):
        raise MessageFormatError(f"the batch has {count} messages and claims another number")
    if first_key.decode() != properties.get(PROPERTY_UNIQUE_KEY):
        raise MessageFormatError("the batch does not have the unique key of its first message")


def _check_each(body: bytes) -> tuple[int, bytes]:
    """Number of messages, and the unique key of the first one. Raises `MessageFormatError`."""
    items = scan_batch(body)
    keys = [find_value(body[tail + 2 : end], _UNIQUE_KEY) or b"" for _, _, tail, end in items]
    if not all(keys) or not _is_text(b" ".join(keys)):
        # Without it a log that ends within the batch would not show how much of it is delivered.
        raise MessageFormatError("not each message of the batch has a unique key")
    return len(items), keys[0]


def _first_key(body: Buffer, columns: BatchColumns) -> bytes:
    """The unique key of the first message, if the properties of all messages are equal except for unique keys
    of one length, as the Spark sink writes them. Else empty."""
    tails = tails_as_rows(body, columns)
    properties = bytes(body[int(columns.tails[0]) + 2 : int(columns.after[0])])
    key = find_value(properties, _UNIQUE_KEY)
    if not key or tails is None:
        return b""
    begin = properties.rfind(_UNIQUE_KEY + key) + len(_UNIQUE_KEY)
    stop = begin + len(key)
    rows = tails[:, 2:]
    before, after = properties[:begin] * len(rows), properties[stop:] * len(rows)
    if _joined(rows[:, :begin]) != before or _joined(rows[:, stop:]) != after:
        return b""
    keys = np.frombuffer(_joined(rows[:, begin:stop]), np.uint8)
    return key if keys.min() > ord(" ") and keys.max() < 127 else b""


def _joined(rows: np.ndarray) -> bytes:
    """Rows of bytes one after the other: each as one item, which takes half as long as byte by byte."""
    width = rows.shape[1]
    return rows.view(f"V{width}").tobytes() if width else b""


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
