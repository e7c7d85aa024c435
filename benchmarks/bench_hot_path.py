"""CPU time of the hot path: what one message costs a broker that takes it, hands it out, or replicates it.

    python -m benchmarks.bench_hot_path [--rounds 5] [--parts send,…] [--size 1024] [--python PYTHON]…

    send       one message a request, 64 requests in flight on one connection
    batch      32 messages a request, 8 in flight
    pull       32 messages a request, 16 in flight
    replicate  a slave that receives the log from a master: append, dispatch, acknowledge

Requests have binary headers, as those of RocketMQ's benchmark. The program under test is a separate process
(`BrokerService`, or `HAService` with a store) that reports its own CPU time; the load comes over loopback
from this process. Counts are fixed, so that runs are comparable. Printed: the least user time and the least
user and system time of the rounds, in microseconds a message. An install with compiled modules is measured
with and without them, and several ``--python`` (each with another BatonMQ) by turns, so that a slow minute of
the machine meets all of them.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import uvloop

from batonmq.broker.config import BrokerConfig
from batonmq.broker.service import BrokerService
from batonmq.common.clock import SystemClock
from batonmq.ha.autoswitch.service import HAService
from batonmq.ha.autoswitch.sync_state import SyncStateSet
from batonmq.ha.config import HAConfig
from batonmq.protocol.message.record import StoredMessage
from batonmq.store.config import StoreConfig
from batonmq.store.store import MessageStore
from benchmarks.bench_broker import QUEUES, Generator, pull_frames, send_frames

PARTS = ("send", "batch", "pull", "replicate")
SENDS = 100_000
BATCH = 32
BATCHES = 6_000
REPLICATED = 200_000
WARM_UP = 5_000


# -- the process under test


async def serve(part: str, root: Path, master: str) -> None:
    """Print the port, then the CPU time used so far (user, system, in s) for each line on stdin."""
    if part == "replicate":
        await serve_slave(root, master)
        return
    broker = BrokerService(
        BrokerConfig(
            broker_name="bench",
            broker_ip1="127.0.0.1",
            listen_port=0,
            default_topic_queue_nums=QUEUES,
            enable_property_filter=True,
            trace_topic_enable=True,
        ),
        StoreConfig(store_path_root_dir=str(root)),
        HAConfig(),
    )
    await broker.start()
    say(broker.port)
    async for _ in lines():
        say(cpu())
    await broker.stop()


async def serve_slave(root: Path, master: str) -> None:
    store = MessageStore.open(
        StoreConfig(store_path_root_dir=str(root)), SystemClock(), wait_for_confirm=True
    )
    ha = HAService(store, HAConfig(), SystemClock(), epoch_file=root / "epochs", port=0, host="127.0.0.1")
    ha.local_id = 2
    await ha.start()
    say(ha.port)
    async for _ in lines():
        if ha.role.name == "NONE":
            await ha.become_slave(master, 1, 1)
        while not ha.following or store.confirm_offset < store.max_offset or not store.max_offset:
            await asyncio.sleep(0.01)
        say(cpu())
    await ha.stop()
    store.close()


def say(what: object) -> None:
    sys.stdout.write(f"{what}\n")
    sys.stdout.flush()


def mode() -> str:
    try:
        from batonmq._compiled import COMPILED
    except ImportError:  # a BatonMQ from before there were compiled modules
        return "pure"
    return "compiled" if COMPILED else "pure"


def cpu() -> str:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return f"{used.ru_utime} {used.ru_stime}"


async def lines() -> Any:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    while line := await reader.readline():
        yield line


# -- the load


class Subject:
    """A running process under test."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.port = int(self._line())

    @property
    def pid(self) -> int:
        return self._process.pid

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"the process under test ended with {self._process.wait()}")
        return line

    def cpu_s(self) -> tuple[float, float]:
        """User and system time used so far."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        user, system = self._line().split()
        return float(user), float(system)


class Install(NamedTuple):
    """What is measured."""

    python: str
    mode: str

    def environment(self) -> dict[str, str]:
        return {**os.environ, "BATONMQ_PURE": "1" if self.mode == "pure" else "0"}

    def exists(self) -> bool:
        program = "from benchmarks.bench_hot_path import mode; print(mode())"
        done = subprocess.run(
            [self.python, "-c", program],
            env=self.environment(),
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        return done.stdout.strip() == self.mode


@contextmanager
def subject(install: Install, part: str, root: Path, master: str = "") -> Iterator[Subject]:
    command = [install.python, "-m", "benchmarks.bench_hot_path", "--serve", part, str(root), master]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=install.environment(), stdin=pipe, stdout=pipe, text=True) as process:
        try:
            yield Subject(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(30)


class Counted(Generator):
    """Sends a number of requests instead of going on for a time."""

    def __init__(self, frames: list[bytes], in_flight: int, count: int) -> None:
        super().__init__(frames, in_flight, float("inf"))
        self._count = count

    def _send(self, count: int) -> None:
        count = min(count, self._count - self.sent)
        if count:
            super()._send(count)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.answered >= self._count and not self.done.done():
            self.done.set_result(None)


async def load(port: int, frames: list[bytes], in_flight: int, count: int) -> None:
    loop = asyncio.get_running_loop()
    _, generator = await loop.create_connection(lambda: Counted(frames, in_flight, count), "127.0.0.1", port)
    await generator.done
    generator.transport.close()
    if generator.failed or generator.answered < count:
        raise SystemExit(f"{generator.answered} of {count} answered, {generator.failed} with an error")


def requests(install: Install, parts: set[str], size: int, root: Path) -> dict[str, tuple[float, float]]:
    """(user, user and system) µs a message of the parts that are requests to a broker."""
    figures: dict[str, tuple[float, float]] = {}
    single, batch = send_frames(size, 1), send_frames(size, BATCH, 32)
    with (
        subject(install, "send", root) as broker,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):

        def measure(part: str, frames: list[bytes], in_flight: int, count: int, each: int) -> None:
            before = broker.cpu_s()
            runner.run(load(broker.port, frames, in_flight, count))
            figures[part] = per_message(before, broker.cpu_s(), count * each)

        runner.run(load(broker.port, single, 64, WARM_UP))
        if parts & {"send", "pull"}:
            measure("send", single, 64, SENDS, 1)
        if "batch" in parts:
            runner.run(load(broker.port, batch, 8, WARM_UP // BATCH))
            measure("batch", batch, 8, BATCHES, BATCH)
        if "pull" in parts:
            frames = pull_frames(SENDS)
            measure("pull", frames, 16, len(frames), 32)
    return {part: figure for part, figure in figures.items() if part in parts}


def replication(install: Install, size: int, folder: Path) -> tuple[float, float]:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(replicate(install, size, folder))


async def replicate(install: Install, size: int, folder: Path) -> tuple[float, float]:
    store = MessageStore.open(
        StoreConfig(store_path_root_dir=str(folder / "master")), SystemClock(), wait_for_confirm=True
    )
    ha = HAService(store, HAConfig(), SystemClock(), epoch_file=folder / "epochs", port=0, host="127.0.0.1")
    ha.local_id = 1
    await ha.start()
    await ha.become_master(1, SyncStateSet(frozenset({1}), 1))
    ha.registered({1, 2})

    def agree() -> None:
        """As a controller that agrees with every proposal."""
        tracker, members = ha.tracker, ha.propose()
        if tracker is not None and members is not None:
            ha.answered(tracker, SyncStateSet(members, tracker.agreed.epoch + 1))

    ha.on_sync_state_change = agree

    async def put(count: int) -> None:
        body = b"x" * size
        for _ in range(count // 64):
            store.put(
                [
                    StoredMessage(topic="Bench", queue_id=n % QUEUES, body=body, properties=b"WAIT\1true\2")
                    for n in range(64)
                ]
            )
            ha.wake()
            await asyncio.sleep(0)

    loop = asyncio.get_running_loop()
    with subject(install, "replicate", folder / "slave", f"127.0.0.1:{ha.port}") as slave:
        await put(WARM_UP)
        before = await loop.run_in_executor(None, slave.cpu_s)
        await put(REPLICATED)
        while not (status := ha.replicas()) or status[0].ack_offset < store.max_offset:
            await asyncio.sleep(0.01)
        after = await loop.run_in_executor(None, slave.cpu_s)
        await ha.stop()
    store.close()
    return per_message(before, after, REPLICATED)


def per_message(
    before: tuple[float, float], after: tuple[float, float], messages: int
) -> tuple[float, float]:
    user, system = (late - early for early, late in zip(before, after, strict=True))
    return user / messages * 1e6, (user + system) / messages * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", action="append", help="interpreter under test (default: this one)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dir", type=Path, help="where stores are (default: a temporary directory)")
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--size", type=int, default=1024, help="bytes of a message body")
    parser.add_argument("--serve", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        logging.basicConfig(level=logging.WARNING)
        part, root, master = given.serve
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(part, Path(root), master))
        return
    parts = set(given.parts.split(","))
    if not parts <= set(PARTS):
        parser.error(f"--parts: of {', '.join(PARTS)}")
    installs = [
        install
        for python in given.python or [sys.executable]
        for install in (Install(python, "compiled"), Install(python, "pure"))
        if install.exists()
    ]
    best: dict[tuple[Install, str], tuple[float, float]] = {}
    for _ in range(given.rounds):
        for install in installs:
            with tempfile.TemporaryDirectory(prefix="bench-hot-path-", dir=given.dir) as folder:
                figures = {}
                if parts - {"replicate"}:
                    figures = requests(install, parts, given.size, Path(folder) / "broker")
                if "replicate" in parts:
                    figures["replicate"] = replication(install, given.size, Path(folder))
            for part, figure in figures.items():
                known = best.get((install, part), figure)
                best[install, part] = min(known[0], figure[0]), min(known[1], figure[1])
    print(f"{given.size} B, least of {given.rounds} rounds, µs a message")
    print(f"{'part':11}{'user':>8}{'user+sys':>10}")
    for part in PARTS:
        for install in installs:
            if (install, part) in best:
                user, both = best[install, part]
                print(f"{part:11}{user:8.2f}{both:10.2f}  {install.mode:10}{install.python}")


if __name__ == "__main__":
    main()
