"""Did a reader ever see part of a batch? A reader beside the exactly-once sink, and what its states mean.

The reader asks for the ends of all queues twice. If both answers are equal, these ends existed at one moment
in between: a *state*. All that a consumer could have read at that moment lies before them. After the run the
offsets in the stream's checkpoint tell which row belongs to which batch, and so how much of each batch every
state shows. Three claims are checked (docs/spark.md, "Exactly once"):

- no row of a batch is visible before the driver has decided the batch;
- no row of a batch is visible before all rows of the batch before it are;
- at BatonMQ's brokers a state has all rows of a batch or none of them, if its half messages are one request
  (at most 1,000, and 8 MiB), unless a broker was killed between the last state without a part and this one.

Ends never go back: what was visible stays visible.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from batonmq import MessageQueue, QueueReader
from batonmq.net.errors import NetError
from batonmq.protocol.errors import MQError
from batonmq.protocol.message.record import decode_records

POLL_S = 0.01
CHUNK = 1_000
"""So many numbers in a row are in one queue of the source (`source_place`)."""


@dataclass(frozen=True, slots=True)
class State:
    """The ends of all queues at one moment."""

    seen: float
    """When it was known first, `time.monotonic`."""
    until: float
    """When it was still so."""
    ends: tuple[int, ...]
    decided: int
    """The newest batch in the ledger, looked up after that; -1: none."""


@dataclass
class Findings:
    """What was seen, and what must not have been."""

    states: int = 0
    """Different states."""
    partial: int = 0
    """Batches of which a state had a part, after a kill that explains it."""
    torn: list[str] = field(default_factory=list)
    """The same without a kill."""
    undecided: list[str] = field(default_factory=list)
    overtaken: list[str] = field(default_factory=list)
    taken_back: list[str] = field(default_factory=list)

    @property
    def wrong(self) -> list[str]:
        return [*self.torn, *self.undecided, *self.overtaken, *self.taken_back]


class Watcher(threading.Thread):
    """Reads a topic all the time: its messages, which are numbers, and the states of its queues."""

    def __init__(self, namesrv: str, topic: str, ledger: Path) -> None:
        super().__init__(daemon=True)
        self._namesrv = namesrv
        self._topic = topic
        self._ledger = ledger
        self.finish = threading.Event()
        self.states: list[State] = []
        """In order; each differs from the one before."""
        self.rows: list[list[int]] = []
        """The numbers in each queue, in order."""

    def run(self) -> None:
        asyncio.run(self._work())

    async def _work(self) -> None:
        async with QueueReader(self._namesrv, retry_timeout_ms=120_000) as reader:
            queues = sorted(await reader.queues(self._topic))
            self.rows = [[] for _ in queues]
            watching = asyncio.create_task(self._watch(reader, queues))
            try:
                await self._read(reader, queues)
            finally:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)

    async def _read(self, reader: QueueReader, queues: Sequence[MessageQueue]) -> None:
        at = [0] * len(queues)
        while True:
            finishing, moved = self.finish.is_set(), False
            for number, queue in enumerate(queues):
                try:
                    if at[number] >= await reader.max_offset(queue):
                        continue
                    pulled = await reader.pull(queue, at[number])
                except (NetError, MQError):
                    moved = True  # ask again
                    continue
                self.rows[number] += [int(record.body) for record in decode_records(pulled.records)]
                moved = moved or pulled.next_offset > at[number]
                at[number] = pulled.next_offset
            if finishing and not moved:
                return
            if not moved:
                await asyncio.sleep(0.05)

    async def _watch(self, reader: QueueReader, queues: Sequence[MessageQueue]) -> None:
        async def ends() -> tuple[int, ...]:
            return tuple([await reader.max_offset(queue) for queue in queues])

        while True:
            try:
                first = await ends()
                second = await ends()
            except (NetError, MQError):
                await asyncio.sleep(POLL_S)
                continue
            if first == second:
                now = time.monotonic()
                if self.states and self.states[-1].ends == first:
                    self.states[-1] = replace(self.states[-1], until=now)
                else:
                    self.states.append(State(now, now, first, self._newest_decided()))
            await asyncio.sleep(POLL_S)

    def _newest_decided(self) -> int:
        try:
            names = [path.stem for path in self._ledger.iterdir() if path.suffix in (".batch", ".done")]
        except FileNotFoundError:
            return -1
        return max((int(name) for name in names if name.isdigit()), default=-1)


def source_place(number: int, queues: int) -> tuple[int, int]:
    """Queue and offset of a number in the source."""
    chunk, rest = divmod(number, CHUNK)
    return chunk % queues, chunk // queues * CHUNK + rest


def batch_ends(checkpoint: Path, topic: str, queues: int) -> list[list[int]]:
    """For each queue of the source, the offsets at which the batches end, by batch. All are still there: the
    job keeps them."""
    found: dict[int, list[int]] = {}
    for path in (checkpoint / "offsets").iterdir():
        if path.name.isdigit():
            offsets = json.loads(path.read_text().splitlines()[-1])[topic]
            by_queue = {int(name.rpartition(":")[2]): offset for name, offset in offsets.items()}
            found[int(path.name)] = [by_queue[queue] for queue in range(queues)]
    assert sorted(found) == list(range(len(found))), "Spark has deleted offsets of old batches"
    return [[found[batch][queue] for batch in range(len(found))] for queue in range(queues)]


def batch_of(number: int, ends: Sequence[Sequence[int]]) -> int:
    """The batch that read a number."""
    queue, offset = source_place(number, len(ends))
    return bisect_right(ends[queue], offset)


def check(
    states: Iterable[State],
    batches: Sequence[Sequence[int]],
    kills: Sequence[tuple[float, float]],
    *,
    whole_at_once: bool,
) -> Findings:
    """Look at all states. `batches`: the batch of each row of each queue, in order; `kills`: begin and end of
    the kills of brokers, `time.monotonic`; `whole_at_once`: whether the third claim holds there."""
    found = Findings()
    totals: dict[int, int] = {}
    for queue in batches:
        for batch in queue:
            totals[batch] = totals.get(batch, 0) + 1
    visible = dict.fromkeys(totals, 0)
    at = [0] * len(batches)
    without_part = 0.0
    explained: set[int] = set()
    for state in states:
        found.states += 1
        if any(end < known for known, end in zip(at, state.ends, strict=True)):
            found.taken_back.append(f"the ends went back from {at} to {list(state.ends)}")
            return found
        for number, end in enumerate(state.ends):
            for batch in batches[number][at[number] : end]:
                visible[batch] += 1
            at[number] = end
        shown = [batch for batch, count in visible.items() if count]
        parts = [batch for batch in shown if visible[batch] < totals[batch]]
        if shown and max(shown) > state.decided:
            found.undecided.append(
                f"batch {max(shown)} was visible, and {state.decided} the newest decided one"
            )
        if parts and min(parts) < max(shown):
            found.overtaken.append(f"batch {max(shown)} was visible, and batch {min(parts)} not all of it")
        if not parts:
            without_part = state.until
        elif whole_at_once:
            batch = max(parts)
            if batch in explained:
                continue
            if any(began <= state.seen and ended >= without_part for began, ended in kills):
                explained.add(batch)
                found.partial += 1
            else:
                found.torn.append(f"{visible[batch]} of {totals[batch]} rows of batch {batch} were visible")
    return found


def counted(rows: Sequence[Sequence[int]]) -> Mapping[int, int]:
    """How often each number was read."""
    seen: dict[int, int] = {}
    for queue in rows:
        for number in queue:
            seen[number] = seen.get(number, 0) + 1
    return seen
