"""Ask over a topic and wait for the answer.

Shows `Producer.request` and `Consumer.reply`.

    python examples/request_reply.py [NAME_SERVERS]
"""

import asyncio
import sys

from batonmq import Admin, ConsumeFromWhere, Consumer, Message, MessageExt, Producer, ReplyTimeout


async def main(namesrv: str) -> None:
    async with Admin(namesrv) as admin:
        await admin.create_topic("sums", queues=2)

    consumer = Consumer("calculators", namesrv, from_where=ConsumeFromWhere.FIRST_OFFSET)

    async def add(message: MessageExt) -> None:
        numbers = [int(word) for word in message.body.split()]
        if numbers:
            await consumer.reply(message, b"%d" % sum(numbers))

    consumer.subscribe("sums", "*", add)
    async with consumer, Producer("questions", namesrv) as producer:
        for text in (b"1 2 3", b"40 2"):
            reply = await producer.request(Message("sums", text), timeout_ms=20_000)
            print(f"{text.decode()}: {reply.body.decode()}")
        try:
            await producer.request(Message("sums", b" "), timeout_ms=500)
        except ReplyTimeout:
            print("nothing to add: nobody replies")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:2] or ["127.0.0.1:9876"]))
