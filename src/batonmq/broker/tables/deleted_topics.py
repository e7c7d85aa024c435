"""Deleted topics that still have messages in the log.

A new master recreates topics that only its log has (`TopicTable.recreate_missing`): its predecessor may have
died before the slaves had copied a new topic. A topic that an operator deleted must not return that way, not
even after a restart, so the names are kept on disk (`deletedTopics.json`). RocketMQ's new masters recreate no
topics and need no such file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import msgspec

MAX_NAMES: Final = 10_000
"""Largest number of names; the oldest are dropped first."""

_decode = msgspec.json.Decoder(list[str]).decode


class DeletedTopics:
    """At most `MAX_NAMES` names, in the order of deletion."""

    def __init__(self) -> None:
        self._names: dict[str, None] = {}
        self.on_change: Callable[[], None] = lambda: None

    def __contains__(self, topic: str) -> bool:
        return topic in self._names

    def add(self, topic: str) -> None:
        """This broker deleted the topic."""
        self._keep([*(name for name in self._names if name != topic), topic])

    def discard(self, topics: Iterable[str]) -> None:
        """The topics were recreated."""
        gone = self._names.keys() & set(topics)
        if gone:
            self._keep(name for name in self._names if name not in gone)

    def replace(self, topics: Iterable[str]) -> None:
        """On a slave: the topics that its master does not have."""
        self._keep(sorted(topics))

    def _keep(self, topics: Iterable[str]) -> None:
        names = dict.fromkeys(list(topics)[-MAX_NAMES:])
        if names.keys() != self._names.keys():
            self._names = names
            self.on_change()

    def encode(self) -> bytes:
        return msgspec.json.encode(list(self._names))

    def restore(self, data: bytes) -> None:
        """Raises ValueError, changing nothing."""
        self._names = dict.fromkeys(_decode(data))
