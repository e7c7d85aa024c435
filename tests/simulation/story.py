"""What a story is, and what is left of one: `Shape` goes in, `Story` comes out, `Violation` ends it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from batonmq.common import tasks
from tests.simulation.loop import Livelock, SimLoop

if TYPE_CHECKING:
    from tests.simulation.cluster import SimCluster

TOPIC, QUEUES = "numbers", 2
START_UP_S, FAULTS_S, HEAL_S = 30.0, 30.0, 90.0


State: TypeAlias = tuple[int, int, str]
"""Master epoch, SyncStateSet as a bit a replica, and what each replica is."""


class Violation(AssertionError):
    """An invariant does not hold."""


@dataclass(frozen=True)
class Shape:
    """What kind of story a seed makes."""

    replicas: int = 2
    controllers: int = 3
    sync_flush: bool = False
    """Acknowledge only what is on disk; only then may the power be cut."""
    replace_controllers: bool = False
    """Operators put new controllers in the place of others."""
    hand_back: bool = False
    """The first replica is the preferred one: the role goes back to it."""
    plot: str = ""
    """This plot again and again (`nemesis.py`), and no other fault."""
    faults_s: float = FAULTS_S
    """How long the faults last, in virtual seconds."""
    kept: frozenset[str] | None = None
    """Only these faults of the seed (keys as in `Story.faults`); None: all. See `shrink.py`."""
    branches: tuple[tuple[int, int], ...] = ()
    """Fault number -> seed that chooses the faults from there on, in ascending order. See `guided.py`."""

    def chooser(self, seed: int, number: int) -> int:
        """The seed that chooses fault `number`."""
        for first, other in self.branches:
            if number >= first:
                seed = other
        return seed


@dataclass
class Story:
    """What happened, for whoever has to understand a failure."""

    seed: int
    acked: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Key -> (queue id, queue offset)."""
    unknown: int = 0
    """Sends whose outcome the producer does not know."""
    seen: dict[tuple[int, int], str] = field(default_factory=dict)
    """(Queue id, queue offset) -> key, as the readers saw it."""
    trace: int = 0
    """Checksum of all that was sent between hosts: equal for two runs of one seed."""
    masters: dict[int, str] = field(default_factory=dict)
    """Master epoch -> node."""
    replaced: int = 0
    """Controllers in whose place operators put new ones."""
    faults: list[str] = field(default_factory=list)
    """Keys of the faults that took place: ``7`` is the seventh, ``epoch 3`` followed an election."""
    states: set[State] = field(default_factory=set)
    """What the broker set went through (`Witness`)."""
    healed_s: float = 0.0
    """Virtual time from the end of the faults to one master and the whole SyncStateSet."""
    events: list[str] = field(default_factory=list)


def shape_of(seed: int, replicas: int | None = None) -> Shape:
    """Seeds cover all shapes in turn: two, three or five replicas, acknowledged in memory or on disk."""
    return Shape(
        replicas=(2, 2, 3, 2, 3, 5)[seed % 6] if replicas is None else replicas,
        sync_flush=seed // 6 % 2 == 1,
    )


class _Watch(logging.Handler):
    """Background work that failed is done again (`batonmq.common.tasks`); here it is a failure."""

    def __init__(self, loop: SimLoop) -> None:
        super().__init__()
        self._loop = loop

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info is not None and record.exc_info[1] is not None:
            self._loop.failures.append({"exception": record.exc_info[1]})


def play_quietly(cluster: SimCluster, seed: int, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a story of a whole cluster, see `play`; its programs log nothing."""
    logging.disable(logging.CRITICAL)
    try:
        with cluster.world.in_force():
            play(cluster.loop, seed, cluster.events, work)
    finally:
        logging.disable(logging.NOTSET)


def play(
    loop: SimLoop, seed: int, events: Sequence[str], work: Callable[[], Coroutine[Any, Any, None]]
) -> int:
    """Run a whole story on `loop`, which is used up; returns the checksum of all that was sent.

    Raises `Violation`, with the last of `events`, if the story does, or if its programs failed.
    """
    # Memory is collected only afterwards: a collection during the story would run `finally`
    # clauses of programs that were killed long ago.
    collecting = gc.isenabled()
    gc.disable()
    watch = _Watch(loop)
    tasks.log.addHandler(watch)
    try:
        asyncio.set_event_loop(loop)
        loop.run_until_complete(work())
        bugs = [c for c in loop.failures if c.get("exception") is not None]
        if bugs:
            raise Violation(f"unhandled in the loop: {bugs[0]}") from bugs[0]["exception"]
        return loop.network.trace
    except (Violation, Livelock) as violation:
        tail = "\n".join(events[-60:])
        raise Violation(f"seed {seed}: {violation}\n{tail}") from violation
    finally:
        tasks.log.removeHandler(watch)
        asyncio.set_event_loop(None)
        loop.dispose()
        gc.collect()
        if collecting:
            gc.enable()


@contextlib.contextmanager
def scratch(name: str, seed: int) -> Iterator[Path]:
    """An empty directory for one story, in memory where /dev/shm exists. Afterwards it is gone, and the files
    that killed programs had open there are closed, as a dead process's kernel would do."""
    memory = Path("/dev/shm")
    root = Path(tempfile.mkdtemp(prefix=f"batonmq-{name}-{seed}-", dir=memory if memory.is_dir() else None))
    try:
        yield root
    finally:
        for entry in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # the one that lists them
                if entry.readlink().is_relative_to(root):
                    os.close(int(entry.name))
        shutil.rmtree(root, ignore_errors=True)
