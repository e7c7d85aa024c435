"""Bytes of any kind."""

from __future__ import annotations

Buffer = bytes | bytearray | memoryview
