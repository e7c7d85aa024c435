"""Topics that were deleted while the log still has messages of them.

A new master makes the topics anew that only its log knows (`TopicTable.rebuild`): its predecessor may have
died before a new topic was copied. What an operator deleted must not come back by that, also not when the
replica was restarted meanwhile, so it is kept on disk (`deletedTopics.json`; RocketMQ has no such file and
needs none, since its new masters make no topics).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import msgspec

MAX_NAMES: Final = 10_000
"""Names kept; the oldest are forgotten first."""

_decode = msgspec.json.Decoder(list[str]).decode


class DeletedTopics:
    """`MAX_NAMES` of them; of those that were deleted here the last ones."""

    def __init__(self) -> None:
        self._names: dict[str, None] = {}
        self.on_change: Callable[[], None] = lambda: None

    def __contains__(self, topic: str) -> bool:
        return topic in self._names

    def add(self, topic: str) -> None:
        """It was deleted here."""
        self._keep([*(name for name in self._names if name != topic), topic])

    def discard(self, topics: Iterable[str]) -> None:
        """They are made again."""
        gone = self._names.keys() & set(topics)
        if gone:
            self._keep(name for name in self._names if name not in gone)

    def replace(self, topics: Iterable[str]) -> None:
        """On a slave: its master has not got them."""
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
