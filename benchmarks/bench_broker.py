"""What one message costs our broker: sends over one connection with binary headers, as RocketMQ's client
writes them.

    python benchmarks/bench_broker.py [--size 1024] [--batch 1] [--in-flight 64] [--seconds 5] [--pull]

Broker and load generator are two processes. The generator prepares its frames beforehand and only counts
answers, so what limits is the broker; its CPU time a message comes from /proc. With --pull the backlog is
read back afterwards in pulls of 32 messages, 16 in flight. The output is JSON lines for
``batonmq spark bench-report``.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import cast

import uvloop

from batonmq.protocol.codes import RequestCode
from batonmq.protocol.frame import encode_head
from batonmq.protocol.message.batch import BatchItem, encode_batch
from batonmq.spark.jobs.bench import OURS, Figure, as_line

QUEUES = 4


class Generator(asyncio.Protocol):
    """Keeps a number of requests in flight; each answer's length field shows where the next one begins."""

    def __init__(self, frames: list[bytes], in_flight: int, until: float) -> None:
        self.frames = frames
        self.in_flight = in_flight
        self.until = until
        self.sent = self.answered = self.failed = self.received = 0
        self.done = asyncio.get_running_loop().create_future()
        self.last: dict[int, int] = {}
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.WriteTransport, transport)
        self._send(self.in_flight)

    def _send(self, count: int) -> None:
        frames, first = self.frames, self.sent
        self.transport.write(b"".join([frames[(first + n) % len(frames)] for n in range(count)]))
        self.sent += count

    def data_received(self, data: bytes) -> None:
        self.received += len(data)
        data = self._rest + data if self._rest else data
        at, end, count = 0, len(data), 0
        while end - at >= 20:
            size = 4 + int.from_bytes(data[at : at + 4], "big")
            if at + size > end:
                break
            if data[at + 8 : at + 10] != b"\0\0":
                self.failed += 1
            at += size
            count += 1
        self._rest = data[at:]
        self.answered += count
        if time.monotonic() < self.until and not self.failed:
            self._send(count)
        elif self.answered >= self.sent and not self.done.done():
            self.done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_result(None)


def send_fields(
    number: int,
    properties: str = "",
    *,
    topic: str = "Bench",
    queues: int = QUEUES,
    sys_flag: int = 0,
    batch: bool = False,
) -> dict[str, str]:
    """The fields of SEND_MESSAGE_V2 of the message `number`; `properties` besides the usual ones, encoded."""
    return {
        "a": "bench_producer",
        "b": topic,
        "c": "TBW102",
        "d": str(QUEUES),
        "e": str(number % queues),
        "f": str(sys_flag),
        "g": str(1_700_000_000_000 + number),
        "h": "0",
        "i": f"UNIQ_KEY\x01{unique_key(number)}\x02WAIT\x01true\x02{properties}",
        "j": "0",
        "k": "false",
        "m": "true" if batch else "false",
        "n": "bench",
    }


def unique_key(number: int) -> str:
    return f"7F0000010A2B18B4AAC2{number:012X}"


def send_frames(size: int, batch: int, count: int = 1000) -> list[bytes]:
    """`count` requests for the topic Bench, of `batch` messages of `size` bytes each."""
    body = b"x" * size
    code = RequestCode.SEND_MESSAGE_V2
    frames = []
    for number in range(count):
        ext = send_fields(number, batch=batch > 1)
        if batch > 1:
            code = RequestCode.SEND_BATCH_MESSAGE
            properties = ext["i"].encode()
            sent = encode_batch([BatchItem(body=body, properties=properties)] * batch)
        else:
            sent = body
        frames.append(encode_head(code, number, 0, binary=True, body_length=len(sent), ext=ext) + sent)
    return frames


def pull_frames(messages: int) -> list[bytes]:
    frames = []
    for offset in range(0, messages // QUEUES - 32, 32):
        for queue in range(QUEUES):
            ext = {
                "consumerGroup": "bench",
                "topic": "Bench",
                "queueId": str(queue),
                "queueOffset": str(offset),
                "maxMsgNums": "32",
                "sysFlag": "4",
                "commitOffset": "0",
                "suspendTimeoutMillis": "0",
                "subVersion": "0",
                "subscription": "*",
            }
            frames.append(encode_head(RequestCode.PULL_MESSAGE, offset, 0, binary=True, ext=ext))
    return frames


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def load(port: int, frames: list[bytes], in_flight: int, seconds: float) -> Generator:
    until = time.monotonic() + seconds
    loop = asyncio.get_running_loop()
    made = loop.create_connection(lambda: Generator(frames, in_flight, until), "127.0.0.1", port)
    _, generator = await made
    await generator.done
    generator.transport.close()
    return generator


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", 1)[0])
    parser.add_argument("--size", type=int, default=1024, help="bytes of a message body")
    parser.add_argument("--batch", type=int, default=1, help="messages in one request")
    parser.add_argument("--in-flight", type=int, default=64, help="requests on their way at a time")
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--pull", action="store_true", help="then read everything back")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-broker-") as folder:
        conf = Path(folder) / "broker.conf"
        conf.write_text(
            f"brokerName=bench\nbrokerIP1=127.0.0.1\nlistenPort=0\nstorePathRootDir={folder}/store\n"
            f"defaultTopicQueueNums={QUEUES}\n"
        )
        program = [sys.executable, "-m", "batonmq", "broker", "-c", str(conf)]
        with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as broker:
            assert broker.stdout is not None
            port = int(broker.stdout.readline().split("127.0.0.1:")[1].split("]")[0])
            try:
                report(broker.pid, port, given)
            finally:
                broker.terminate()
                broker.wait(30)
    return 0


def report(pid: int, port: int, given: argparse.Namespace) -> None:
    frames = send_frames(given.size, given.batch)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(load(port, frames, given.in_flight, 1.0))
        began, cpu = time.monotonic(), cpu_seconds(pid)
        sent = runner.run(load(port, frames, given.in_flight, given.seconds))
        wall, cpu = time.monotonic() - began, cpu_seconds(pid) - cpu
        messages = sent.answered * given.batch
        show(f"send, {given.size} B, batches of {given.batch}", messages, wall, cpu, sent.failed)
        if given.pull:
            frames = pull_frames(messages)
            began, cpu = time.monotonic(), cpu_seconds(pid)
            pulled = runner.run(load(port, frames, 16, min(given.seconds, 5)))
            wall, cpu = time.monotonic() - began, cpu_seconds(pid) - cpu
            show(f"pull of 32, {given.size} B", pulled.answered * 32, wall, cpu, pulled.failed)


def show(what: str, messages: int, wall: float, cpu: float, failed: int) -> None:
    """Print figures as JSON lines."""
    for name, unit, value in (
        ("messages", "messages/s", messages / wall),
        ("processor time a message", "µs", cpu / max(1, messages) * 1e6),
        ("failed requests", "requests", float(failed)),
    ):
        passes = [round(value, 2)]
        title = f"{what}: {name}"
        figure = Figure(benchmark="bench_broker", figure=title, unit=unit, system=OURS, passes=passes)
        print(as_line(figure))


if __name__ == "__main__":
    sys.exit(main())
