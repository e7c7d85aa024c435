"""Recall handles of timed messages."""

from __future__ import annotations

import base64

import pytest

from batonmq.protocol.message.errors import MessageFormatError
from batonmq.protocol.message.recall import RecallHandle, decode_recall_handle, encode_recall_handle


def handle(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode()


def test_a_handle_is_read_with_and_without_padding() -> None:
    text = encode_recall_handle("t", "broker-a", 1795504172000, "C0A8")
    assert text == handle("v1 t broker-a 1795504172000 C0A8")
    expected = RecallHandle("t", "broker-a", "1795504172000", "C0A8")
    assert decode_recall_handle(text) == decode_recall_handle(text.rstrip("=")) == expected


@pytest.mark.parametrize("text", ["", "%%%", "é", "A", handle("v2 t b 1 u"), handle("v1 t b 1")])
def test_other_text_is_not_a_handle(text: str) -> None:
    with pytest.raises(MessageFormatError, match="recall handle is invalid"):
        decode_recall_handle(text)
