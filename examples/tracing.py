"""Record who sent and who handled a message, and measure it with a hook.

Shows `MessageTrace`, RocketMQ's message trace (here in another topic than usual, so that brokers need no
setting), and how to write a `Hook`. `batonmq.client.opentelemetry.OpenTelemetry` is a ready hook for spans.

    python examples/tracing.py [NAME_SERVERS]
"""

import asyncio
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from batonmq import Admin, ConsumeFromWhere, Consumer, Hook, Message, MessageTrace, Producer, QueueReader
from batonmq.client.hooks import Sending


class Stopwatch(Hook):
    @contextmanager
    def sending(self, sending: Sending) -> Iterator[None]:
        began = time.perf_counter()
        yield
        print(f"a {sending.kind.value} message took {(time.perf_counter() - began) * 1000:.1f} ms")


async def main(namesrv: str) -> None:
    async with Admin(namesrv) as admin:
        await admin.create_topic("parcels", queues=1)
        await admin.create_topic("parcel-traces", queues=1)
    handled = asyncio.Event()
    async with MessageTrace(namesrv, topic="parcel-traces") as trace:
        consumer = Consumer("depot", namesrv, from_where=ConsumeFromWhere.FIRST_OFFSET, hooks=[trace])
        consumer.subscribe("parcels", "*", lambda message: handled.set())
        async with consumer, Producer("post", namesrv, hooks=[trace, Stopwatch()]) as producer:
            await producer.send(Message("parcels", b"books", keys="parcel-1"))
            await handled.wait()
    async with QueueReader(namesrv) as reader:
        async for message in reader.messages("parcel-traces"):
            for line in message.body.decode().split("\x02")[:-1]:
                print(f"trace of {message.keys[-1]}: {line.split(chr(1))[0]}")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:2] or ["127.0.0.1:9876"]))
