"""The messages of one queue that a consumer holds. Decides what may be committed and when to stop pulling."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from batonmq.protocol.message.record import MessageExt


@dataclass(slots=True)
class ProcessQueue:
    """Messages between pull and commit, by queue offset. Committing never passes an unfinished one."""

    next_offset: int
    """Where to pull next."""
    _held: dict[int, int] = field(default_factory=dict)
    _size: int = 0
    _highest: int = -1

    def add(self, messages: Iterable[MessageExt]) -> None:
        """Pulled in ascending order of offset."""
        for message in messages:
            self._held[message.queue_offset] = len(message.body)
            self._size += len(message.body)
            self._highest = max(self._highest, message.queue_offset)

    def done(self, messages: Iterable[MessageExt]) -> None:
        """Handled, or safely stored elsewhere."""
        for message in messages:
            self._size -= self._held.pop(message.queue_offset, 0)

    @property
    def begun(self) -> bool:
        """Whether messages were pulled."""
        return self._highest >= 0

    @property
    def count(self) -> int:
        """Messages held."""
        return len(self._held)

    @property
    def size(self) -> int:
        """Bytes of their bodies."""
        return self._size

    @property
    def commit_offset(self) -> int:
        """All messages below this offset are done."""
        # Offsets are added in ascending order, so that the first key is the least: a queue that moves back is
        # taken again, with another buffer.
        return next(iter(self._held)) if self._held else max(self.next_offset, self._highest + 1)

    def is_full(self, max_count: int, max_size: int, max_span: int) -> bool:
        """Pull no more: too many messages or bytes, or one slow message holds back too many others."""
        if len(self._held) >= max_count or self._size >= max_size:
            return True
        return bool(self._held) and self._highest - next(iter(self._held)) > max_span
