"""Deliver messages later, and cancel one before it is due.

Shows `delay`, `deliver_at` and `Producer.recall`. Brokers need `recallMessageEnable=true` for the last.

    python examples/delayed_messages.py [NAME_SERVERS]
"""

import asyncio
import sys
import time
from datetime import datetime, timedelta

from batonmq import Admin, ConsumeFromWhere, Consumer, Message, MessageExt, Producer


async def main(namesrv: str) -> None:
    async with Admin(namesrv) as admin:
        await admin.create_topic("reminders", queues=1)
    both = asyncio.Event()
    delivered: list[str] = []
    began = time.monotonic()

    async def handle(message: MessageExt) -> None:
        delivered.append(message.body.decode())
        print(f"{message.body.decode()}, after {time.monotonic() - began:.1f} s")
        if len(delivered) == 2:
            both.set()

    consumer = Consumer("calendar", namesrv, from_where=ConsumeFromWhere.FIRST_OFFSET)
    consumer.subscribe("reminders", "*", handle)
    async with consumer, Producer("appointments", namesrv) as producer:
        began = time.monotonic()
        await producer.send(Message("reminders", b"tea is ready", delay=timedelta(seconds=2)))
        at = datetime.now() + timedelta(seconds=4)
        await producer.send(Message("reminders", b"the train leaves", deliver_at=at))
        cancelled = await producer.send(Message("reminders", b"the dentist waits", delay=3))
        if cancelled.recall_handle is not None:
            await producer.recall("reminders", cancelled.recall_handle)
            print("the dentist is cancelled")
        await both.wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:2] or ["127.0.0.1:9876"]))
