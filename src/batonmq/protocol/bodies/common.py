"""Structs that many bodies share."""

from __future__ import annotations

import msgspec
from msgspec import field

from batonmq.protocol.json import Body


class DataVersion(Body):
    """The version of a table. ``timestamp`` is ms, ``state_version`` the master epoch."""

    timestamp: int = 0
    counter: int = 0
    state_version: int = 0


class MessageQueue(msgspec.Struct, frozen=True, order=True, rename="camel"):
    """One queue of a topic on one broker (by the broker's name, not its address)."""

    topic: str
    broker_name: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic}@{self.broker_name}:{self.queue_id}"


class TopicList(Body):
    topic_list: list[str] = field(default_factory=list)
    broker_addr: str | None = None


class KVTable(Body):
    table: dict[str, str] = field(default_factory=dict)
