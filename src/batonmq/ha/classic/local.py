"""This replica as both ends of a link see it: its log, and how it is configured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from batonmq.ha.classic.core import LogBounds

if TYPE_CHECKING:
    from batonmq.common.clock import Clock
    from batonmq.ha.config import HAConfig
    from batonmq.ha.port import ReplicatedLog
    from batonmq.ha.security import LinkSecurity


@dataclass(slots=True, eq=False)
class LocalReplica:
    """One for the life of a broker."""

    store: ReplicatedLog
    config: HAConfig
    clock: Clock
    security: LinkSecurity
    nonce: Callable[[], bytes]
    """Randomness for the proofs of one link."""
    file_size: int
    """Bytes of a commit log file."""
    sync_flush: bool
    """A slave acknowledges what is on disk, not what is in the page cache."""
    broker_id: int
    """This broker's id, from its file."""

    def bounds(self) -> LogBounds:
        """The log as sessions want to know it."""
        return LogBounds(self.store.min_offset, self.store.max_offset, self.file_size)
