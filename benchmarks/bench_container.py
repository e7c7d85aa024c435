"""Broker containers: ten idle brokers, and what more processes bring.

    python benchmarks/bench_container.py idle [--brokers 10] [--rounds 3] [--java]
    python benchmarks/bench_container.py send [--processes 1,2] [--rounds 3] [--seconds 5] [--in-process]

idle: from starting the process to the moment when every broker has answered a request; the processor time
that took, which counts where others use the machine, too; anonymous memory after five seconds of rest. With
--java the same of RocketMQ's container and the same files (`tests/interop/peer.sh`), with a heap of
--java-heap; 2 GB is what that script gives it.

send: batches of 32 messages of 1 KiB to two brokers of one container, with one process and with two, in turn.
The load is one process that prepares its frames beforehand and counts answers. Its processor time is shown,
because on two processors it takes from the brokers what it needs. With --in-process each process of brokers
makes its own load on its own event loop instead, over loopback. Stores are in /dev/shm where there is one, so
that the disk decides nothing. The output is JSON lines for ``batonmq spark bench-report``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import uvloop

from batonmq.common import garbage
from batonmq.container.broker_file import read_broker_file
from batonmq.container.in_process import InProcess
from batonmq.demo.ports import free_ports
from batonmq.net import RemotingClient
from batonmq.net.errors import NetError
from batonmq.net.tls import TlsConfig
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.admin import GetBrokerRuntimeInfo
from batonmq.spark.jobs.bench import OURS, Figure, as_line
from benchmarks.bench_broker import QUEUES, cpu_seconds, load, send_frames
from benchmarks.clusters import PEER

BATCH, BYTES = 32, 1024
IDLE_S = 5.0
START_TIMEOUT_S = 120.0


def anonymous_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon")) / 1024


def family(pid: int) -> list[int]:
    """The process and its children."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *map(int, children)]


def write_files(folder: Path, count: int, *, processes: int = 1) -> tuple[Path, list[int]]:
    """The container's file, and the ports of its brokers."""
    port, *ports = free_ports(count + 1)
    paths = []
    for number, each in enumerate(ports):
        path = folder / f"broker-{number}.conf"
        path.write_text(
            f"brokerName=bench-{number}\nbrokerIP1=127.0.0.1\nbrokerIP2=127.0.0.1\nlistenPort={each}\n"
            f"storePathRootDir={folder}/store-{number}\nstorePathCommitLog={folder}/store-{number}/commitlog\n"
            f"defaultTopicQueueNums={QUEUES}\n"
        )
        paths.append(str(path))
    file = folder / "container.conf"
    file.write_text(
        f"listenPort={port}\nbrokerContainerIP=127.0.0.1\ncontainerProcesses={processes}\n"
        f"brokerConfigPaths={':'.join(paths)}\n"
    )
    return file, ports


@contextmanager
def scratch() -> Iterator[Path]:
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(
        prefix="bench-container-", dir=shared if shared.is_dir() else None
    ) as name:
        yield Path(name)


@contextmanager
def running(command: Sequence[str], folder: Path, env: dict[str, str] | None = None) -> Iterator[int]:
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **(env or {})}) as process,
    ):
        try:
            yield process.pid
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()


async def all_serve(ports: Sequence[int]) -> float:
    """When (`time.monotonic`) the last of the brokers has answered."""
    client = RemotingClient()

    async def serves(port: int) -> None:
        while True:
            try:
                await client.call(f"127.0.0.1:{port}", GetBrokerRuntimeInfo(), timeout_ms=1000)
                return
            except (NetError, MQError):  # RocketMQ's brokers answer with an error while they start
                await asyncio.sleep(0.02)

    try:
        async with asyncio.timeout(START_TIMEOUT_S):
            await asyncio.gather(*map(serves, ports))
        return time.monotonic()
    finally:
        await client.close()


def ours(file: Path) -> list[str]:
    return [sys.executable, "-m", "batonmq", "container", "-c", str(file)]


def idle(name: str, rounds: int, brokers: int, heap: str | None) -> None:
    """One line of figures; `heap`: RocketMQ's container with this heap."""
    seconds, cpu, memory = [], [], []
    for _ in range(rounds):
        with scratch() as folder:
            file, ports = write_files(folder, brokers)
            command = ours(file) if heap is None else [str(PEER), "container", "-c", str(file)]
            env = {} if heap is None else {"PEER_HEAP": heap, "PEER_USER_HOME": str(folder / "home")}
            began = time.monotonic()
            with running(command, folder, env) as pid:
                try:
                    seconds.append(asyncio.run(all_serve(ports)) - began)
                except TimeoutError:
                    print((folder / "log").read_text(errors="replace")[-2000:], file=sys.stderr)
                    raise
                cpu.append(sum(map(cpu_seconds, family(pid))))
                time.sleep(IDLE_S)
                memory.append(sum(map(anonymous_mb, family(pid))))
    show(name, f"idle, {brokers} brokers: until all serve", "s", seconds)
    show(name, f"idle, {brokers} brokers: processor time until then", "s", cpu)
    show(name, f"idle, {brokers} brokers: anonymous memory", "MB", memory)


def show(system: str, figure: str, unit: str, passes: Sequence[float]) -> None:
    """Print a figure as a JSON line."""
    values = [round(each, 2) for each in passes]
    line = as_line(
        Figure(benchmark="bench_container", figure=figure, unit=unit, system=system, passes=values)
    )
    print(line, flush=True)


async def load_all(ports: Sequence[int], seconds: float, in_flight: int) -> tuple[int, int]:
    """Sends to all brokers at once; requests answered and refused."""
    frames = send_frames(BYTES, BATCH, 64)
    done = await asyncio.gather(*(load(port, frames, in_flight, seconds) for port in ports))
    return sum(each.answered for each in done), sum(each.failed for each in done)


def send(processes: int, seconds: float, in_flight: int) -> dict[str, float]:
    """The real container under load from this process."""
    with scratch() as folder:
        file, ports = write_files(folder, 2, processes=processes)
        with running(ours(file), folder) as pid, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(all_serve(ports))
            runner.run(load_all(ports, 1.0, in_flight))
            pids = family(pid)
            began, cpu, own = time.monotonic(), sum(map(cpu_seconds, pids)), time.process_time()
            answered, failed = runner.run(load_all(ports, seconds, in_flight))
            wall = time.monotonic() - began
            assert not failed, (folder / "log").read_text()[-2000:]
            return {
                "msg_per_s": answered * BATCH / wall,
                "brokers_cpu": (sum(map(cpu_seconds, pids)) - cpu) / wall,
                "load_cpu": (time.process_time() - own) / wall,
            }


def in_process(processes: int, seconds: float, in_flight: int) -> dict[str, float]:
    """Two brokers in `processes` processes, each of which loads its own."""
    with scratch() as folder:
        write_files(folder, 2)
        paths = [str(folder / f"broker-{number}.conf") for number in range(2)]
        shares = [paths] if processes == 1 else [[path] for path in paths]
        running = [
            subprocess.Popen(
                [
                    sys.executable,
                    __file__,
                    "part",
                    *share,
                    "--seconds",
                    str(seconds),
                    "--in-flight",
                    str(in_flight),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for share in shares
        ]
        for process in running:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
        for process in running:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        figures = [json.loads(process.communicate()[0]) for process in running]
        return {key: sum(each[key] for each in figures) for key in ("msg_per_s", "brokers_cpu")}


async def part(paths: Sequence[str], seconds: float, in_flight: int) -> None:
    """A process of `in_process`: brokers and their load on one event loop."""
    place = InProcess(TlsConfig(), lambda identity, cause: None)
    files = [read_broker_file(Path(path), "") for path in paths]
    for file in files:
        await place.start(file)
    ports = [file.config.listen_port for file in files]
    await load_all(ports, 1.0, in_flight)
    garbage.settle()
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    began, cpu = time.monotonic(), time.process_time()
    answered, failed = await load_all(ports, seconds, in_flight)
    wall = time.monotonic() - began
    assert not failed
    print(
        json.dumps(
            {
                "msg_per_s": answered * BATCH / wall,
                "brokers_cpu": (time.process_time() - cpu) / wall,
            }
        )
    )
    await place.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", 1)[0])
    parser.add_argument("mode", choices=("idle", "send", "part"))
    parser.add_argument("paths", nargs="*", help=argparse.SUPPRESS)
    parser.add_argument("--brokers", type=int, default=10)
    parser.add_argument("--processes", default="1,2", help="of the container, one after the other")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--in-flight", type=int, default=8, help="requests on their way to each broker")
    parser.add_argument("--in-process", action="store_true", help="each process of brokers makes its load")
    parser.add_argument("--java", action="store_true", help="RocketMQ's container beside")
    parser.add_argument("--java-heap", default="2g")
    given = parser.parse_args()
    if given.mode == "part":
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(part(given.paths, given.seconds, given.in_flight))
        return 0
    if given.mode == "idle":
        idle(OURS, given.rounds, given.brokers, None)
        if given.java:
            idle(
                f"Apache RocketMQ 5.5.0, heap {given.java_heap}", given.rounds, given.brokers, given.java_heap
            )
        return 0
    measure = in_process if given.in_process else send
    counts = [int(each) for each in given.processes.split(",")]
    found: dict[int, list[dict[str, float]]] = {count: [] for count in counts}
    for number in range(given.rounds):
        for count in counts if number % 2 == 0 else counts[::-1]:
            found[count].append(measure(count, given.seconds, given.in_flight))
    where = f"{given.mode}, brokers in this process" if given.in_process else given.mode
    titles = {
        "msg_per_s": ("messages", "messages/s"),
        "brokers_cpu": ("processors of the brokers", "processors"),
        "load_cpu": ("processors of the load", "processors"),
    }
    for count, rounds in found.items():
        for key in rounds[0]:
            name, unit = titles[key]
            show(OURS, f"{where}, {count} processes: {name}", unit, [each[key] for each in rounds])
    first, *rest = counts
    for count in rest:
        pairs = zip(found[count], found[first], strict=True)
        times = [one["msg_per_s"] / other["msg_per_s"] for one, other in pairs]
        show(OURS, f"{where}: messages of {count} processes", f"times those of {first}", times)
    return 0


if __name__ == "__main__":
    sys.exit(main())
