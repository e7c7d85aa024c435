"""Deliver messages later, and cancel one before it is due.

Shows `delay`, `deliver_at` and `Producer.recall`. Brokers need `recallMessageEnable=true` for the last.

    python examples/delayed_messages.py [NAME_SERVERS]
"""

import asyncio
import sys
import time
from datetime import datetime, timedelta
from uuid import uuid4

from batonmq import Admin, ConsumeFromWhere, Consumer, Message, MessageExt, MQError, Producer


async def main(namesrv: str) -> None:
    async with Admin(namesrv) as admin:
        await admin.create_topic("reminders", queues=1)
    run = uuid4().hex  # the tag of this run: messages of an earlier one are left out
    expected = {"tea is ready", "the train leaves"}
    all_here = asyncio.Event()
    began = time.monotonic()

    async def handle(message: MessageExt) -> None:
        text = message.body.decode()
        print(f"{text}, after {time.monotonic() - began:.1f} s")
        expected.discard(text)
        if not expected:
            all_here.set()

    consumer = Consumer("calendar", namesrv, from_where=ConsumeFromWhere.FIRST_OFFSET)
    consumer.subscribe("reminders", run, handle)
    async with consumer, Producer("appointments", namesrv) as producer:
        began = time.monotonic()
        await producer.send(Message("reminders", b"tea is ready", tags=run, delay=timedelta(seconds=2)))
        at = datetime.now() + timedelta(seconds=4)
        await producer.send(Message("reminders", b"the train leaves", tags=run, deliver_at=at))
        cancelled = await producer.send(Message("reminders", b"the dentist waits", tags=run, delay=3))
        if cancelled.recall_handle is not None:
            try:
                await producer.recall("reminders", cancelled.recall_handle)
                print("the dentist is cancelled")
            except MQError as error:  # recallMessageEnable is off
                print(f"the dentist is not cancelled: {error}")
        await all_here.wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:2] or ["127.0.0.1:9876"]))
