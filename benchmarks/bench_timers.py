"""How late timed messages are: 100 000 due within one minute, beside others that wait.

    python benchmarks/bench_timers.py [--count 100000] [--over 60] [--lead 60] [--pending 0] [--java]

Messages are sent with a time of delivery spread evenly over `--over` seconds, which begin `--lead` seconds
after the start. `--pending` more messages are due in one to two days. Lateness is the store time of the
delivered message, by the broker's clock, less the time asked for. With --java the broker is RocketMQ's
(`peer.sh`). The output is JSON lines for ``batonmq spark bench-report``.
Broker and load generator are two processes.
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

import uvloop

from batonmq.demo.ports import free_ports
from batonmq.net import RemotingClient
from batonmq.protocol.codes import PullSysFlag, ResponseCode
from batonmq.protocol.headers.broker.pull import PullMessage
from batonmq.protocol.headers.broker.send import SendMessageV2
from batonmq.protocol.message.record import decode_records
from batonmq.spark.jobs.bench import OURS, Figure, as_line

JAVA = "Apache RocketMQ 5.5.0"
TOPIC, QUEUES = "BenchTimers", 4
IN_FLIGHT = 64
PEER = Path(os.environ.get("PEER_SH", Path(__file__).parents[1] / "tests" / "interop" / "peer.sh"))


def conf(root: Path, port: int) -> str:
    return "\n".join(
        f"{key}={value}"
        for key, value in {
            "brokerName": "bench",
            "brokerIP1": "127.0.0.1",
            "listenPort": port,
            "haListenPort": port + 1,
            "storePathRootDir": root / "store",
            "storePathCommitLog": root / "store" / "commitlog",
            "timerWheelEnable": "true",
            "flushDiskType": "ASYNC_FLUSH",
        }.items()
    )


class Program:
    """The broker under test."""

    def __init__(self, root: Path, *, java: bool) -> None:
        self.port = free_ports(1)[0]
        file = root / "broker.conf"
        file.write_text(conf(root, self.port) + "\n")
        command = [str(PEER), "broker", "-c", str(file)] if java else []
        command = command or [sys.executable, "-m", "batonmq", "broker", "-c", str(file)]
        self.log = root / "broker.log"
        self.process = subprocess.Popen(command, stdout=self.log.open("wb"), stderr=subprocess.STDOUT)
        while b"boot success" not in self.log.read_bytes():
            if self.process.poll() is not None:
                raise SystemExit(f"the broker ended: {self.log.read_text()[-2000:]}")
            time.sleep(0.1)

    @property
    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def anonymous_mib(self) -> float:
        """Memory that is not a file's."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("RssAnon:")[2].split()[0]) / 1024

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(60)


def request(queue_id: int, deliver_ms: int, key: str) -> SendMessageV2:
    return SendMessageV2(
        producer_group="bench",
        topic=TOPIC,
        default_topic="TBW102",
        default_topic_queue_nums=QUEUES,
        queue_id=queue_id,
        sys_flag=0,
        born_timestamp=int(time.time() * 1000),
        flag=0,
        properties=f"UNIQ_KEY\1{key}\2TIMER_DELIVER_MS\1{deliver_ms}\2DUE\1{deliver_ms}\2",
    )


async def send(client: RemotingClient, address: str, due: list[int], body: bytes, prefix: str) -> float:
    """Send one message for each time; returns the seconds that it took."""
    numbers = iter(range(len(due)))
    began = time.monotonic()

    async def worker() -> None:
        for n in numbers:
            await client.call(address, request(n % QUEUES, due[n], f"{prefix}{n}"), body, timeout_ms=30_000)

    await asyncio.gather(*[worker() for _ in range(IN_FLIGHT)])
    return time.monotonic() - began


async def read(client: RemotingClient, address: str, count: int, until: float) -> list[int]:
    """Lateness in ms of up to `count` messages, read until the monotonic time `until`."""
    late: list[int] = []
    offsets = [0] * QUEUES
    while len(late) < count and time.monotonic() < until:
        found = False
        for queue_id in range(QUEUES):
            header = PullMessage(
                consumer_group="bench",
                topic=TOPIC,
                queue_id=queue_id,
                queue_offset=offsets[queue_id],
                max_msg_nums=32,
                sys_flag=PullSysFlag.SUBSCRIPTION,
                commit_offset=0,
                suspend_timeout_millis=0,
                sub_version=0,
                subscription="*",
            )
            answer = await client.call(
                address,
                header,
                accept=(0, ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_OFFSET_MOVED),
                timeout_ms=30_000,
            )
            if answer.code == 0:
                for record in decode_records(answer.body):
                    offsets[queue_id] = record.queue_offset + 1
                    if record.properties.get("DUE", "0") != "0":
                        late.append(record.store_timestamp - int(record.properties["DUE"]))
                        found = True
        if not found:
            await asyncio.sleep(0.2)
    return late


async def run(arguments: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        program = Program(Path(folder), java=arguments.java)
        client = RemotingClient()
        address = f"127.0.0.1:{program.port}"
        try:
            for _ in range(30):  # a Java broker takes its time for the first message
                try:
                    await send(client, address, [0] * QUEUES, b"warm", "w")
                    break
                except Exception:
                    await asyncio.sleep(1)
            body = bytes(arguments.size)
            now = int(time.time() * 1000)
            if arguments.pending:
                day = 86_400_000
                far = [now + day + n * day // arguments.pending for n in range(arguments.pending)]
                await send(client, address, far, body, "p")
            memory = program.anonymous_mib
            begin = int(time.time() * 1000) + arguments.lead * 1_000
            due = [begin + n * arguments.over * 1_000 // arguments.count for n in range(arguments.count)]
            sending_s = await send(client, address, due, body, "k")
            left_s = begin / 1000 - time.time()
            if left_s < 0:
                print(f"sending took {sending_s:.1f} s: give a longer --lead", file=sys.stderr)
            await asyncio.sleep(max(0, left_s))
            cpu = program.cpu_s
            await asyncio.sleep(arguments.over + 5)
            cpu = program.cpu_s - cpu
            late = sorted(await read(client, address, arguments.count, time.monotonic() + 120))
            figures: tuple[tuple[str, str, float], ...] = (
                ("delivered", "messages", len(late)),
                ("delivered early", "messages", sum(ms < 0 for ms in late)),
                ("delivered after their time, p50", "ms", late[len(late) // 2]),
                ("delivered after their time, p99", "ms", late[len(late) * 99 // 100]),
                ("delivered after their time, max", "ms", late[-1]),
                ("stored", "messages/s", round(arguments.count / sending_s)),
                ("processor time a delivery", "µs", round(cpu / len(late) * 1e6, 1)),
                ("anonymous memory before", "MiB", round(memory)),
                ("anonymous memory after", "MiB", round(program.anonymous_mib)),
            )
            work = f"bench_timers, {arguments.count:,} of {arguments.size} B, {arguments.pending:,} pending"
            system = JAVA if arguments.java else OURS
            for name, unit, value in figures:
                passes = [float(value)]
                print(as_line(Figure(benchmark=work, figure=name, unit=unit, system=system, passes=passes)))
        finally:
            await client.close()
            program.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--over", type=int, default=60, help="seconds over which they are due")
    parser.add_argument("--lead", type=int, default=60, help="seconds until the first is due")
    parser.add_argument("--pending", type=int, default=0, help="messages that wait beside them")
    parser.add_argument("--size", type=int, default=256, help="bytes of a body")
    parser.add_argument("--java", action="store_true", help="RocketMQ's broker")
    uvloop.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
