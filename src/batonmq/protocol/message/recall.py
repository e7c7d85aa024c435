"""Handles that recall a timed message: what a producer gets with the answer to its send.

Source: RocketMQ's `RecallMessageHandle`.
"""

from __future__ import annotations

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Final, NamedTuple

from batonmq.protocol.message.errors import MessageFormatError

_VERSION: Final = "v1"


class RecallHandle(NamedTuple):
    """Which message to recall."""

    topic: str
    broker_name: str
    timestamp: str
    """Time of delivery, ms since the epoch; as the client sent it, which may be no number."""
    unique_key: str


def encode_recall_handle(topic: str, broker_name: str, timestamp_ms: int, unique_key: str) -> str:
    """The handle as text."""
    text = f"{_VERSION} {topic} {broker_name} {timestamp_ms} {unique_key}"
    return urlsafe_b64encode(text.encode()).decode("ascii")


def decode_recall_handle(text: str) -> RecallHandle:
    """Inverse of `encode_recall_handle`; raises `MessageFormatError`. Padding may be missing, as in Java."""
    try:
        data = text.encode("ascii").rstrip(b"=")
        if data.translate(None, _ALPHABET):
            raise ValueError
        items = urlsafe_b64decode(data + b"=" * (-len(data) % 4)).decode("utf-8", "replace").split(" ")
    except (ValueError, binascii.Error):
        raise MessageFormatError("recall handle is invalid") from None
    if len(items) < 5 or items[0] != _VERSION:
        raise MessageFormatError("recall handle is invalid")
    return RecallHandle(*items[1:5])


_ALPHABET: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
