"""This replica as both ends of a link see it: its log, its epochs, and how it is configured."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from batonmq.ha.autoswitch.core import LogBounds

if TYPE_CHECKING:
    from batonmq.common.clock import Clock
    from batonmq.common.running_time import RunningTime
    from batonmq.ha.autoswitch.epoch_file import EpochFile
    from batonmq.ha.autoswitch.epochs import EpochCache
    from batonmq.ha.config import HAConfig
    from batonmq.ha.port import ReplicatedLog
    from batonmq.ha.security import LinkSecurity


class ForeignMaster(Exception):
    """The broker at the master's address belongs to another broker set."""


async def _trusted() -> None:
    """Default of `LocalReplica.check_master`."""


@dataclass(slots=True, eq=False)
class LocalReplica:
    """One for the life of a broker; only `broker_id` and `check_master` change."""

    store: ReplicatedLog
    epoch_file: EpochFile
    config: HAConfig
    clock: Clock
    running: RunningTime
    """Time of links and of the SyncStateSet: pauses of this process are not lag of others."""
    security: LinkSecurity
    nonce: Callable[[], bytes]
    """Randomness for the proofs of one link."""
    file_size: int
    """Bytes of a commit log file."""
    sync_flush: bool
    """A slave acknowledges what is on disk, not what is in the page cache."""
    broker_id: int = -1
    """This broker's id at the controller; set before a role is taken."""
    check_master: Callable[[], Awaitable[None]] = _trusted
    """Makes sure that the broker at the master's address is of this broker set. Awaited once a link stands,
    before the first change to the log and the first ack. Raises `ForeignMaster`, `NetError`."""

    @property
    def epochs(self) -> EpochCache:
        """The log's epochs; live."""
        return self.epoch_file.cache

    @property
    def confirmable_end(self) -> int:
        """How far this master's log counts for the confirm offset: as a slave's would, see
        `SlaveLink.acknowledge`.

        Otherwise consumers could read, with SYNC_FLUSH, what a power cut takes back; its queue offsets go to
        other messages then, which those consumers never see.
        """
        return self.store.flushed_offset if self.sync_flush else self.store.max_offset

    def bounds(self) -> LogBounds:
        """The log as sessions want to know it."""
        store = self.store
        return LogBounds(store.min_offset, store.max_offset, store.confirm_offset, self.file_size)
