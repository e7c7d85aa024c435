"""CPU time of the other kinds of messages: what one message costs a broker without replicas.

    python -m benchmarks.bench_kinds [--rounds 3] [--parts transaction,…] [--profile FILE]

    transaction  a half message and its commit, 64 in flight on one connection
    pop          pops of 32 messages, each acknowledged by a request, 8 pops in flight
    sql          pulls with an SQL92 filter that one message in a hundred passes; counted are all messages
    timed        a timed message: its send, and its delivery some seconds later
    trace        message traces of producers, as RocketMQ's client stores them

Broker and load are two processes, as in `bench_hot_path.py`, which also says what is printed. With --profile
py-spy records the broker of the last round (only in --mode pure are all frames seen).
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import cast

import uvloop

from batonmq.net import RemotingClient
from batonmq.protocol.codes import RequestCode
from batonmq.protocol.frame import Command, FrameReader, encode_head
from batonmq.protocol.headers.broker.pull import GetMaxOffset, GetMaxOffsetResponse
from batonmq.protocol.message.batch import BatchItem, encode_batch
from benchmarks.bench_broker import QUEUES, send_fields, send_frames, unique_key
from benchmarks.bench_hot_path import Install, Subject, load, per_message, subject
from benchmarks.pop import Consumer, backlog

TRANSACTIONS = 20_000
POPPED = 100_000
FILTERED = 192_000
"""A multiple of 32 messages for each queue."""
TIMED = 30_000
TIMED_LEAD_S, TIMED_SPAN_S = 6, 6
WARM_UP = 3_000
ONEWAY = 2
"""The flag of a request without an answer."""


class Transactions(asyncio.Protocol):
    """Half messages, each committed as soon as it is acknowledged."""

    def __init__(self, count: int, in_flight: int) -> None:
        self.count, self.in_flight = count, in_flight
        self.sent = self.answered = 0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._reader = FrameReader()
        self._body = b"x" * 1024

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)
        self._transport.write(b"".join([self._half() for _ in range(self.in_flight)]))

    def _half(self) -> bytes:
        if self.sent >= self.count:
            return b""
        self.sent += 1
        number = self.sent
        ext = send_fields(number, "TRAN_MSG\x01true\x02PGROUP\x01bench_producer\x02", sys_flag=4)
        code = RequestCode.SEND_MESSAGE_V2
        head = encode_head(code, number, 0, binary=True, body_length=len(self._body), ext=ext)
        return bytes(head + self._body)

    def _commit(self, answer: Command) -> bytes:
        ext = answer.ext
        number = answer.opaque
        fields = {
            "producerGroup": "bench_producer",
            "tranStateTableOffset": ext["queueOffset"],
            "commitLogOffset": str(int(ext["msgId"][-16:], 16)),
            "commitOrRollback": "8",
            "fromTransactionCheck": "false",
            "msgId": unique_key(number),
            "transactionId": unique_key(number),
            "bname": "bench",
        }
        return bytes(
            encode_head(RequestCode.END_TRANSACTION, 1 << 24 | number, ONEWAY, binary=True, ext=fields)
        )

    def data_received(self, data: bytes) -> None:
        out: list[bytes] = []
        for answer in self._reader.feed(data):
            if answer.code != 0:
                raise SystemExit(f"a half message was refused: {answer.code} {answer.remark}")
            out += (self._commit(answer), self._half())
            self.answered += 1
        self._transport.write(b"".join(out))
        if self.answered >= self.count and not self.done.done():
            self.done.set_result(None)


async def transactions(port: int, count: int) -> None:
    """Returns when all commits are visible."""
    before = await visible(port, "Bench")
    loop = asyncio.get_running_loop()
    _, client = await loop.create_connection(lambda: Transactions(count, 64), "127.0.0.1", port)
    await client.done
    while await visible(port, "Bench") < before + count:
        await asyncio.sleep(0.005)


async def visible(port: int, topic: str) -> int:
    """Messages of a topic that can be read."""
    net = RemotingClient()
    total = 0
    try:
        for queue in range(QUEUES):
            answer = await net.call(f"127.0.0.1:{port}", GetMaxOffset(topic=topic, queue_id=queue))
            assert isinstance(answer.header, GetMaxOffsetResponse)
            total += answer.header.offset
    finally:
        await net.close()
    return total


def with_properties(
    frames: Callable[[int], str], count: int, topic: str = "Bench", size: int = 256, queues: int = QUEUES
) -> list[bytes]:
    """Sends of one message each; ``frames(n)``: its properties besides the usual ones."""
    body = b"x" * size
    made = []
    for number in range(count):
        ext = send_fields(number, frames(number), topic=topic, queues=queues)
        head = encode_head(RequestCode.SEND_MESSAGE_V2, number, 0, binary=True, body_length=size, ext=ext)
        made.append(bytes(head + body))
    return made


def backlog_frames(count: int) -> list[bytes]:
    """Batches of 32 of the topic Filtered; the property a has each of 0 to 99 equally often."""
    made = []
    for number in range(count // 32):
        ext = {
            "a": "bench_producer",
            "b": "Filtered",
            "c": "TBW102",
            "d": str(QUEUES),
            "e": str(number % QUEUES),
            "f": "0",
            "g": "1700000000000",
            "h": "0",
            "i": "WAIT\x01true\x02",
            "j": "0",
            "k": "false",
            "m": "true",
            "n": "bench",
        }
        items = [
            BatchItem(
                body=b"x" * 1024,
                properties=f"a\x01{(number * 32 + n) % 100}\x02UNIQ_KEY\x01{n:032X}\x02".encode(),
            )
            for n in range(32)
        ]
        body = encode_batch(items)
        head = encode_head(
            RequestCode.SEND_BATCH_MESSAGE, number, 0, binary=True, body_length=len(body), ext=ext
        )
        made.append(bytes(head + body))
    return made


class Filtered(asyncio.Protocol):
    """Pulls each queue to its end with a filter, one pull in flight for each."""

    def __init__(self, each: int) -> None:
        self._reader = FrameReader()
        self._each = each
        self._left = QUEUES
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)
        for queue in range(QUEUES):
            self._pull(queue, 0)

    def _pull(self, queue: int, offset: int) -> None:
        ext = {
            "consumerGroup": "bench",
            "topic": "Filtered",
            "queueId": str(queue),
            "queueOffset": str(offset),
            "maxMsgNums": "32",
            "sysFlag": "4",
            "commitOffset": "0",
            "suspendTimeoutMillis": "0",
            "subVersion": "0",
            "subscription": "a BETWEEN 7 AND 7",
            "expressionType": "SQL92",
        }
        self._transport.write(encode_head(RequestCode.PULL_MESSAGE, queue, 0, binary=True, ext=ext))

    def data_received(self, data: bytes) -> None:
        for answer in self._reader.feed(data):
            if answer.code not in (0, 19, 20):
                raise SystemExit(f"a pull failed: {answer.code} {answer.remark}")
            offset = int(answer.ext["nextBeginOffset"])
            if offset < self._each:
                self._pull(answer.opaque, offset)
            else:
                self._left -= 1
        if not self._left and not self.done.done():
            self.done.set_result(None)


async def filtered(port: int, each: int) -> None:
    loop = asyncio.get_running_loop()
    _, client = await loop.create_connection(lambda: Filtered(each), "127.0.0.1", port)
    await client.done


async def pop(port: int, count: int) -> None:
    loop = asyncio.get_running_loop()
    transport, consumer = await loop.create_connection(
        lambda: Consumer("Popped", "pop_bench", "bench", count, 8), "127.0.0.1", port
    )
    await consumer.done
    transport.close()
    if consumer.failed:
        raise SystemExit(f"{consumer.failed} acks were refused")


async def timed(port: int, count: int) -> None:
    """Returns when all are delivered."""
    begin = int(time.time() * 1000) + TIMED_LEAD_S * 1000
    frames = with_properties(
        lambda n: f"TIMER_DELIVER_MS\x01{begin + n * TIMED_SPAN_S * 1000 // count}\x02", count, "Timed"
    )
    await load(port, frames, 64, count)
    while await visible(port, "Timed") < count:
        await asyncio.sleep(0.1)


def measure(install: Install, part: str, profile: Path | None) -> tuple[float, float]:
    """(user, user and system) µs a message."""
    with (
        tempfile.TemporaryDirectory(prefix="bench-kinds-") as folder,
        subject(install, "send", Path(folder)) as broker,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        port = broker.port
        runner.run(load(port, send_frames(1024, 1), 64, WARM_UP))
        if part == "transaction":
            runner.run(transactions(port, WARM_UP))
            return recorded(
                broker, profile, TRANSACTIONS, lambda: runner.run(transactions(port, TRANSACTIONS))
            )
        if part == "pop":
            runner.run(backlog(f"127.0.0.1:{port}", "Popped", QUEUES, POPPED, 1024))
            return recorded(broker, profile, POPPED, lambda: runner.run(pop(port, POPPED)))
        if part == "sql":
            frames = backlog_frames(FILTERED)
            runner.run(load(port, frames, 8, len(frames)))
            each = FILTERED // QUEUES
            return recorded(broker, profile, FILTERED, lambda: runner.run(filtered(port, each)))
        if part == "trace":
            frames = with_properties(lambda n: f"KEYS\x01{n:032X}\x02", 1000, "RMQ_SYS_TRACE_TOPIC", 600, 1)
            return recorded(broker, profile, TIMED, lambda: runner.run(load(port, frames, 64, TIMED)))
        return recorded(broker, profile, TIMED, lambda: runner.run(timed(port, TIMED)))


def recorded(
    broker: Subject, profile: Path | None, count: int, run: Callable[[], object | None]
) -> tuple[float, float]:
    before = broker.cpu_s()
    command = ["py-spy", "record", "-r", "500", "-f", "raw", "-o", str(profile), "-p", str(broker.pid)]
    with subprocess.Popen(command) if profile else nullcontext() as spy:
        run()
        after = broker.cpu_s()
        if spy is not None:
            spy.send_signal(2)
    return per_message(before, after, count)


PARTS = ("transaction", "pop", "sql", "timed", "trace")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", action="append", help="interpreter under test (default: this one)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--mode", choices=["compiled", "pure"], help="default: both, if there are both")
    parser.add_argument("--profile", type=Path)
    given = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    parts = given.parts.split(",")
    if not set(parts) <= set(PARTS):
        parser.error(f"--parts: of {', '.join(PARTS)}")
    modes = [given.mode] if given.mode else ["compiled", "pure"]
    installs = [
        install
        for python in given.python or [sys.executable]
        for install in (Install(python, mode) for mode in modes)
        if install.exists()
    ]
    print(f"least of {given.rounds} rounds, µs a message")
    print(f"{'part':12}{'user':>8}{'user+sys':>10}")
    for part in parts:
        for install in installs:
            found = [
                measure(install, part, given.profile if n + 1 == given.rounds else None)
                for n in range(given.rounds)
            ]
            user, both = (min(each[n] for each in found) for n in range(2))
            print(f"{part:12}{user:8.2f}{both:10.2f}  {install.mode:10}{install.python}")


if __name__ == "__main__":
    main()
