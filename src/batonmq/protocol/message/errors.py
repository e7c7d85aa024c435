"""Bytes that are not a message."""

from __future__ import annotations


class MessageFormatError(ValueError):
    """Bytes that are not the record, batch or id they should be; the text says what is wrong."""
