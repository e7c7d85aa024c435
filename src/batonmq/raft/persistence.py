"""The jobs of a node's disk, one after the other: saves, removal of old log files, reads of a snapshot."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from batonmq.common.files import reason
from batonmq.raft.errors import RaftError
from batonmq.raft.messages import Snapshot
from batonmq.raft.state import Save
from batonmq.raft.storage import Storage
from batonmq.raft.worker import Worker

log = logging.getLogger(__name__)

DISK_PATIENCE_S = 30.0
"""How long a stopping node waits for its disk: longer than any flush of a disk that still works."""


def _no_save() -> Save | None:
    return None


class Persistence:
    """Gives the worker one job at a time; saves come first.

    ``name`` is how log lines name the node. The callbacks are called on the event loop; ``failed`` with what
    a job raised, or what another callback raised.
    """

    def __init__(
        self,
        name: str,
        storage: Storage,
        worker: Worker,
        *,
        saved: Callable[[Save], None],
        snapshot_loaded: Callable[[Snapshot], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self._name = name
        self._storage = storage
        self._worker = worker
        self._saved = saved
        self._snapshot_loaded = snapshot_loaded
        self._failed = failed
        self._take_save = _no_save
        self.busy = False
        self._stopped = False
        self._idle = asyncio.Event()
        """Set when the node has stopped and the job that was under way then is done."""
        self._drop_before = 0
        self._load_wanted = False
        self._loaded: Snapshot | None = None

    def begin(self, take_save: Callable[[], Save | None]) -> None:
        """The files are open; ``take_save`` gives the next unit that must become durable."""
        self._take_save = take_save

    def drop_before(self, index: int) -> None:
        """Log files that hold only entries before ``index`` are needless now."""
        self._drop_before = max(self._drop_before, index)

    def load_snapshot(self) -> None:
        """A follower needs the newest snapshot."""
        self._load_wanted = True

    def wake(self) -> None:
        """Give the disk its next job, if it has none."""
        if self.busy or self._stopped:
            return
        save = self._take_save()
        if save is not None:
            job, then = partial(self._storage.save, save), partial(self._saved, save)
            self._submit(job, then, brief=save.snapshot is None)
        elif self._drop_before:
            index, self._drop_before = self._drop_before, 0
            self._submit(partial(self._storage.drop_before, index), self.wake)
        elif self._load_wanted:
            self._load_wanted = False
            self._submit(self._load, self._pass_on)

    def _submit(self, job: Callable[[], object], then: Callable[[], None], *, brief: bool = False) -> None:
        def done(error: BaseException | None) -> None:
            self.busy = False
            if self._stopped:
                if error is not None:
                    self._log_late_failure(error)
                self._idle.set()
            elif error is not None:
                self._failed(error)
            else:
                try:
                    then()
                except Exception as e:
                    self._failed(e)

        self._worker.submit(job, done, brief=brief)
        self.busy = True  # only now: `close` would wait forever for a job that the worker did not take

    def _load(self) -> None:
        self._loaded = self._storage.load_snapshot()

    def _pass_on(self) -> None:
        snapshot, self._loaded = self._loaded, None
        if snapshot is not None:
            self._snapshot_loaded(snapshot)
        self.wake()

    # -- the end

    def stop(self) -> None:
        """No further jobs. What the job under way raises is logged only."""
        self._stopped = True

    async def finish(self) -> bool:
        """After `stop`: wait for the job under way. Returns False, and logs it, if the disk never answers."""
        self._worker.stop()
        if self.busy:
            try:
                async with asyncio.timeout(DISK_PATIENCE_S):
                    await self._idle.wait()
            except TimeoutError:
                log.error(
                    "%s: its disk did not answer for %g s; it is left as it is", self._name, DISK_PATIENCE_S
                )
                return False
        return True

    async def close(self) -> None:
        """Close the files, after `finish`. A failure is logged only: all that was acknowledged is durable."""
        try:
            await asyncio.get_running_loop().run_in_executor(None, self._storage.close)
        except OSError as e:
            self._log_late_failure(e)

    def _log_late_failure(self, error: BaseException) -> None:
        log.error("%s: its disk failed as it stopped: %s", self._name, failure_text(error))


def failure_text(error: BaseException) -> str:
    """In a line, with the path if it is the disk's."""
    if isinstance(error, OSError):
        return reason(error)
    return str(error) if isinstance(error, RaftError) else repr(error)
