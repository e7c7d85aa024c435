"""When a node takes snapshots of its own state, and their way to the disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from batonmq.raft.applier import Applier
from batonmq.raft.config import RaftConfig
from batonmq.raft.messages import Members, Snapshot


class Snapshots:
    """Takes one snapshot at a time.

    ``write`` blocks and runs in the loop's executor; then ``written`` or ``failed`` is called on the loop.
    """

    def __init__(
        self,
        config: RaftConfig,
        applier: Applier,
        *,
        write: Callable[[Snapshot], None],
        written: Callable[[Snapshot], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self._config = config
        self._applier = applier
        self._write = write
        self._written = written
        self._failed = failed
        self._task: asyncio.Task[None] | None = None
        self._at_ms = 0
        self.index = 0
        """Of the newest snapshot, be it written or not."""

    def restored(self, index: int, now_ms: int) -> None:
        """The state is that of a snapshot of the disk or of the leader, or empty at the start."""
        self.index, self._at_ms = index, now_ms

    def is_due(self, now_ms: int) -> bool:
        config, applier = self._config, self._applier
        applied = applier.index - self.index
        if self._task is not None or applied == 0:
            return False
        return (
            0 < config.snapshot_entries <= applied
            or 0 < config.snapshot_bytes <= applier.bytes_since_snapshot
            or 0 < config.snapshot_interval_ms <= now_ms - self._at_ms
        )

    def take(self, members: Members, now_ms: int) -> asyncio.Task[None]:
        """Take one now, unless one is being written; ``members`` is the membership at the applied index."""
        if self._task is None:
            snapshot = self._applier.snapshot(members)
            self.index, self._at_ms = snapshot.meta.index, now_ms
            self._task = asyncio.get_running_loop().create_task(self._save(snapshot))
        return self._task

    async def _save(self, snapshot: Snapshot) -> None:
        try:
            await asyncio.get_running_loop().run_in_executor(None, self._write, snapshot)
            self._written(snapshot)
        except Exception as e:
            self._failed(e)
        finally:
            self._task = None

    async def finish(self) -> None:
        """Wait for the one that is being written."""
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)
