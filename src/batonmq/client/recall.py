"""Recall handles: what a broker answers for a delayed message, and what cancels it. Pure.

Source: `RecallMessageHandle` of Apache RocketMQ 5.5: in URL-safe Base64, ``v1 topic brokerName timestamp
uniqueKey``, joined by blanks.
"""

from __future__ import annotations

import base64
import binascii
from typing import NamedTuple

_VERSION = "v1"


class RecallHandle(NamedTuple):
    """A delayed message, as its broker knows it."""

    topic: str
    broker_name: str
    deliver_at_ms: int
    unique_id: str


def parse_recall_handle(text: str) -> RecallHandle:
    """Raises ValueError for anything else than a handle that a broker gave."""
    try:
        padded = text.encode("ascii") + b"=" * (-len(text) % 4)
        parts = base64.b64decode(padded, altchars=b"-_", validate=True).decode().split(" ")
        version, topic, broker_name, time, unique_id = parts
        if version != _VERSION or not (topic and broker_name and unique_id):
            raise ValueError(version)
        return RecallHandle(topic, broker_name, int(time), unique_id)
    except (ValueError, binascii.Error) as error:
        raise ValueError(f"{text!r} is no recall handle of a send result") from error
