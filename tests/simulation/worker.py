"""The disk's worker of a simulated node: the simulated loop's executor, in which work takes virtual time."""

from __future__ import annotations

import asyncio

from batonmq.raft.worker import Done, Job


class LoopWorker:
    def submit(self, job: Job, done: Done, *, brief: bool = False) -> None:
        future = asyncio.get_running_loop().run_in_executor(None, job)
        future.add_done_callback(lambda finished: done(finished.exception()))

    def stop(self) -> None:
        pass
