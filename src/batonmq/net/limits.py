"""Bounds that keep one peer, or many, from taking all memory."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of one server or client. Sizes in bytes, times in ms; 0 switches a time limit off."""

    max_frame_bytes: int = 16 * 1024 * 1024
    """A longer frame is hostile. RocketMQ's `com.rocketmq.remoting.frameMaxLength`, 16 MiB."""
    max_connections: int = 10_000
    """A server closes connections above this at once, with a log line for each address once in a while. A
    client closes the oldest one that waits for no answer."""
    max_in_flight: int = 16_384
    """Unanswered requests of one connection. At this many we stop reading it until half are answered. Held
    long polls count, so it must exceed the queues one consumer process may poll on one broker."""
    max_in_flight_bytes: int = 64 * 1024 * 1024
    """Bytes of those requests, with the same effect."""
    write_buffer_bytes: int = 4 * 1024 * 1024
    """Bytes waiting for a slow reader, per connection, before its requests are no longer taken."""
    request_timeout_ms: int = 120_000
    """A request unanswered for so long is answered with SYSTEM_BUSY. Longer than any long poll."""
    idle_timeout_ms: int = 120_000
    """A connection silent in both directions for so long is closed (`serverChannelMaxIdleTimeSeconds`)."""
