"""The stream beside the load: kept running, restarted from its checkpoint, and compared at the end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from batonmq.client.reader import QueueReader
from batonmq.protocol.message.properties import PROPERTY_UNIQUE_KEY
from batonmq.protocol.message.record import MessageExt
from tests.chaos.check import Verdict
from tests.chaos.load import Load, read_messages
from tests.spark.processes import Job, descendants, kill
from tests.spark.soak import table
from tests.spark.soak.compare import Row, compare

PATTERN = "Chaos-.*"
"""The topics of all scenarios; each is made while the stream runs."""
POLL_S = 0.5
END_TIMEOUT_S = 240.0
"""Until the stream has read all, after the last message."""
STOP_TIMEOUT_S = 60.0
TAIL = 25
"""Lines of the job's log that are shown when it fails."""

Ends = Mapping[str, Mapping[str, int]]
"""Topic -> ``broker:queue`` -> offset, as in the stream's checkpoint."""


class Stream:
    """The query of `job.py`: a `Guest` of the cluster."""

    def __init__(
        self,
        namesrv: str,
        directory: Path,
        rng: random.Random,
        pause_s: tuple[float, float],
        say: Callable[[str], None],
    ) -> None:
        """`pause_s`: least and longest time from a driver's first micro-batch to its end."""
        self._namesrv = namesrv
        self._target, self._checkpoint = directory / "table", directory / "checkpoint"
        command = [sys.executable, "-m", "tests.spark.soak.job", namesrv, PATTERN]
        self._job = Job([*command, str(self._target), str(self._checkpoint)], directory / "job.log")
        self._rng = rng
        self._pause_s = pause_s
        self._say = say
        self._keeper: asyncio.Task[None] | None = None
        self._paused = asyncio.Event()
        """Set: the driver is restarted no more."""
        self._began_at = -1
        """The newest micro-batch when the driver was last started."""
        self.restarts: Counter[str] = Counter()
        self.failures: list[str] = []
        """Ends of the query that nobody asked for; each is wrong."""
        self.verdict = Verdict()
        self.table: table.Table | None = None
        """None until `check` has compared it."""

    # -- as a guest

    async def start(self) -> None:
        self._job.start()
        self._keeper = asyncio.create_task(self._keep())

    async def check(self, loads: Sequence[Load]) -> None:
        """Wait until the stream has read all, stop it and compare its table."""
        assert self._keeper is not None
        self._paused.set()
        ends = await self._ends([load.topic for load in loads])
        self._say("the stream reads to the end")
        if not await self._reached(ends):
            self.failures.append(
                f"not at the end of the topics after {END_TIMEOUT_S:g} s: {self._missing(ends)}"
            )
        await self._leave()
        await self._end(self._end_in_order)
        self._say("comparing the table")
        self.table = await asyncio.to_thread(table.read, self._target)
        for load in loads:
            # A read by a client that has nothing of Spark.
            topic = [row_of(message) for message in await read_messages(load.topic, self._namesrv)]
            rows = list(self.table.of_topic(load.topic))
            found = await asyncio.to_thread(compare, rows, topic, load.sends)
            self.verdict.merge(found)
            self.verdict.sent += found.sent
            self.verdict.acked += found.acked
            self.verdict.stored += len(topic)
        for topic_name in self.table.parts.keys() - {load.topic for load in loads}:
            self.failures.append(f"the table has rows of {topic_name}, which is not a topic of this run")

    async def stop(self) -> None:
        await self._leave()
        if self._job.process is not None:
            await asyncio.to_thread(self._kill)

    async def _leave(self) -> None:
        """End the task that restarts the driver. Raises what ended it before."""
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await keeper

    # -- the driver

    async def _keep(self) -> None:
        """Restart the driver now and then, and when it has ended by itself."""
        end_s: float | None = None
        while True:
            await asyncio.sleep(POLL_S)
            assert self._job.process is not None
            if self._job.process.poll() is not None:
                self._failed(f"the query ended by itself, exit code {self._job.process.returncode}")
                await self._end(_kill_orphans)
                await self._restart()
                end_s = None
            elif self._paused.is_set() or self._committed() <= self._began_at:
                continue  # the end of a driver that has done nothing yet is not a test
            elif end_s is None:
                end_s = time.monotonic() + self._rng.uniform(*self._pause_s)
            elif time.monotonic() > end_s:
                how = "stopped" if self.restarts.total() % 2 else "killed"
                self._say(f"the driver is {how}")
                await self._end(self._kill if how == "killed" else self._end_in_order)
                self.restarts[how] += 1
                await self._restart()
                end_s = None

    async def _end(self, how: Callable[[], None]) -> None:
        await asyncio.shield(asyncio.to_thread(how))

    def _end_in_order(self) -> None:
        try:
            code = self._job.stop(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._failed(f"the driver did not stop within {STOP_TIMEOUT_S:g} s")
        else:
            # A driver that is still starting does not know yet what to do about SIGTERM.
            if code not in (0, -15):
                self._failed(f"the driver was asked to stop and failed with exit code {code}")
        self._kill()

    def _kill(self) -> None:
        assert self._job.process is not None
        if self._job.process.poll() is None:
            self._job.kill()
        _kill_orphans()

    async def _restart(self) -> None:
        await asyncio.sleep(self._rng.uniform(0, 2))
        self._began_at = self._committed()
        self._job.start()

    def _failed(self, what: str) -> None:
        lines = self._job.log.read_text(errors="replace").splitlines()
        self.failures.append("\n".join([what, *lines[-TAIL:]]))
        self._say(what)

    # -- how far it is

    def _committed(self) -> int:
        """The newest micro-batch that the checkpoint has as done; -1: none."""
        names = [path.name for path in (self._checkpoint / "commits").glob("*")]
        return max((int(name) for name in names if name.isdigit()), default=-1)

    def position(self) -> Ends:
        """The offsets up to which all is in the table."""
        batch = self._committed()
        if batch < 0:
            return {}
        text = (self._checkpoint / "offsets" / str(batch)).read_text()
        offsets: Ends = json.loads(text.splitlines()[-1])
        return offsets

    @property
    def read(self) -> int:
        """Messages in the table; all queues begin at 0."""
        return sum(offset for queues in self.position().values() for offset in queues.values())

    def _missing(self, ends: Ends) -> dict[str, int]:
        """Queue -> messages that the stream has still to read."""
        position = self.position()
        behind = {
            f"{topic} {queue}": end - position.get(topic, {}).get(queue, 0)
            for topic, queues in ends.items()
            for queue, end in queues.items()
        }
        return {queue: count for queue, count in behind.items() if count}

    async def _reached(self, ends: Ends) -> bool:
        deadline = time.monotonic() + END_TIMEOUT_S
        while self._missing(ends):
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(POLL_S)
        return True

    async def _ends(self, topics: Sequence[str]) -> Ends:
        async with QueueReader(self._namesrv) as reader:
            return {
                topic: {
                    f"{queue.broker_name}:{queue.queue_id}": await reader.max_offset(queue)
                    for queue in await reader.queues(topic)
                }
                for topic in topics
            }


def _kill_orphans() -> None:
    """JVMs and Python workers whose driver has ended must not write beside the next one. They are our
    children then: inside a run we are process 1."""
    for process in descendants(os.getpid()):
        if "org.apache.spark" in process.command or "pyspark.daemon" in process.command:
            kill(process.pid)


def row_of(message: MessageExt) -> Row:
    """As the table has it."""
    return Row(
        message.queue_id,
        message.queue_offset,
        message.properties.get("KEYS", ""),
        bytes(message.body),
        message.properties.get(PROPERTY_UNIQUE_KEY, ""),
        message.store_timestamp,
    )
