"""Pop with ack of a backlog: messages a second from one broker, ours or RocketMQ's.

``python -m benchmarks.pop HOST:PORT --messages 200000`` creates a topic, sends the backlog in batches, pops
it with several requests in flight and acknowledges every message. It speaks raw frames, so that it costs
little beside the broker. A broker of RocketMQ needs ``timerWheelEnable=true``.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import struct
import time
from collections import deque
from pathlib import Path
from typing import cast

import click

from batonmq.net import RemotingClient
from batonmq.protocol.codes import RequestCode
from batonmq.protocol.headers.broker.send import SendMessageV2
from batonmq.protocol.headers.broker.topics import CreateTopic
from batonmq.protocol.message.batch import BatchItem, encode_batch

_INTS = struct.Struct(">ii")
_CODE = re.compile(rb'"code":(-?\d+)')
_OPAQUE = re.compile(rb'"opaque":(\d+)')


def frame(code: int, opaque: int, fields: dict[str, str]) -> bytes:
    """A request without body, header as JSON."""
    header = json.dumps(
        {
            "code": code,
            "language": "JAVA",
            "version": 453,
            "opaque": opaque,
            "flag": 0,
            "extFields": fields,
            "serializeTypeCurrentRPC": "JSON",
        }
    ).encode()
    return _INTS.pack(4 + len(header), len(header)) + header


class Consumer(asyncio.Protocol):
    """One connection that pops and acknowledges until everything is consumed."""

    def __init__(self, topic: str, group: str, broker: str, total: int, in_flight: int) -> None:
        self.topic, self.group, self.broker = topic, group, broker
        self.total, self.in_flight = total, in_flight
        self.acked = self.popped = self.failed = 0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.latencies: list[float] = []
        self._data = bytearray()
        self._pops: dict[int, float] = {}
        self._opaque = 0
        self._transport: asyncio.WriteTransport | None = None
        self._out: deque[bytes] = deque()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)
        self._transport.write(b"".join(self._pop() for _ in range(self.in_flight)))

    def _pop(self) -> bytes:
        self._opaque += 1
        self._pops[self._opaque] = time.perf_counter()
        now = str(int(time.time() * 1000))
        return frame(
            RequestCode.POP_MESSAGE,
            self._opaque,
            {
                "consumerGroup": self.group,
                "topic": self.topic,
                "queueId": "-1",
                "maxMsgNums": "32",
                "invisibleTime": "60000",
                "pollTime": "5000",
                "bornTime": now,
                "initMode": "0",
                "order": "false",
            },
        )

    def data_received(self, data: bytes) -> None:
        self._data += data
        at, end = 0, len(self._data)
        view = bytes(self._data)
        while end - at >= 8:
            size, header_size = _INTS.unpack_from(view, at)
            if end - at < 4 + size:
                break
            self._answer(view[at + 8 : at + 8 + (header_size & 0xFFFFFF)])
            at += 4 + size
        del self._data[:at]
        if self._out and self._transport is not None:
            self._transport.write(b"".join(self._out))
            self._out.clear()

    def _answer(self, header: bytes) -> None:
        opaque = _OPAQUE.search(header)
        code = _CODE.search(header)
        assert opaque is not None and code is not None
        began = self._pops.pop(int(opaque[1]), None)
        if began is None:
            self.acked += 1
            if code[1] != b"0":
                self.failed += 1
            if self.acked >= self.total and not self.done.done():
                self.done.set_result(None)
            return
        if code[1] == b"0":
            self.latencies.append(time.perf_counter() - began)
            self._acks(json.loads(header)["extFields"])
        self._out.append(self._pop())

    def _acks(self, fields: dict[str, str]) -> None:
        starts = dict(part.rsplit(" ", 1) for part in fields["startOffsetInfo"].split(";"))
        pop_time, invisible, revive = fields["popTime"], fields["invisibleTime"], fields["reviveQid"]
        for part in fields["msgOffsetInfo"].split(";"):
            flag, queue, offsets = part.split(" ")
            receipt = (
                f"{starts[f'{flag} {queue}']} {pop_time} {invisible} {revive} {flag} {self.broker} {queue} "
            )
            for offset in offsets.split(","):
                self.popped += 1
                self._opaque += 1
                header = (
                    f'{{"code":{int(RequestCode.ACK_MESSAGE)},"language":"JAVA","version":453,"opaque":{self._opaque},'
                    f'"flag":0,"extFields":{{"consumerGroup":"{self.group}","topic":"{self.topic}",'
                    f'"queueId":"{queue}","extraInfo":"{receipt}{offset}","offset":"{offset}"}},'
                    '"serializeTypeCurrentRPC":"JSON"}'
                ).encode()
                self._out.append(_INTS.pack(4 + len(header), len(header)) + header)


async def backlog(address: str, topic: str, queues: int, messages: int, size: int) -> None:
    """Create the topic, and send messages of `size` bytes to its queues."""
    client = RemotingClient()
    try:
        await client.call(
            address,
            CreateTopic(
                topic=topic,
                default_topic="TBW102",
                read_queue_nums=queues,
                write_queue_nums=queues,
                perm=6,
                topic_filter_type="SINGLE_TAG",
                order=False,
            ),
        )
        batch = encode_batch([BatchItem(body=b"x" * size)] * 100)
        for n in range(messages // 100):
            header = SendMessageV2(
                producer_group="p",
                topic=topic,
                default_topic="TBW102",
                default_topic_queue_nums=4,
                queue_id=n % queues,
                sys_flag=0,
                born_timestamp=int(time.time() * 1000),
                flag=0,
                batch=True,
            )
            await client.call(address, header, batch, timeout_ms=20_000)
    finally:
        await client.close()


def cpu_s(pid: int | None) -> float:
    """CPU time of a process so far; 0 for None."""
    if pid is None:
        return 0.0
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def measure(
    address: str, broker: str, messages: int, queues: int, size: int, in_flight: int, pid: int | None
) -> tuple[float, float, Consumer]:
    """Messages a second, CPU time of the broker (s), and the consumer that counted the messages."""
    topic = f"Pop{int(time.time())}"
    await backlog(address, topic, queues, messages, size)
    host, _, port = address.rpartition(":")
    began, used = time.perf_counter(), cpu_s(pid)
    transport, consumer = await asyncio.get_running_loop().create_connection(
        lambda: Consumer(topic, "pop_bench", broker, messages, in_flight), host, int(port)
    )
    try:
        await asyncio.wait_for(consumer.done, 300)
    finally:
        transport.close()
    return messages / (time.perf_counter() - began), cpu_s(pid) - used, consumer


@click.command()
@click.argument("address")
@click.option("--broker", default="b", show_default=True, help="Name of the broker, for receipts.")
@click.option("--messages", default=100_000, show_default=True)
@click.option("--queues", default=8, show_default=True)
@click.option("--size", default=1024, show_default=True, help="Bytes of a body.")
@click.option("--in-flight", default=8, show_default=True, help="Pops at a time.")
@click.option("--pid", type=int, help="The broker's process, to say what it used.")
def main(
    address: str, broker: str, messages: int, queues: int, size: int, in_flight: int, pid: int | None
) -> None:
    """Pop and acknowledge a backlog at ADDRESS."""
    rate, used_s, consumer = asyncio.run(measure(address, broker, messages, queues, size, in_flight, pid))
    waits = sorted(consumer.latencies)
    click.echo(
        f"{rate:,.0f} messages/s, {messages} popped and acknowledged, {consumer.failed} acks refused; "
        f"pop {waits[len(waits) // 2] * 1e3:.2f} ms median, {waits[len(waits) * 99 // 100] * 1e3:.2f} ms p99"
        + ("" if pid is None else f"; {used_s / messages * 1e6:.0f} us of CPU a message")
    )


if __name__ == "__main__":
    main()
