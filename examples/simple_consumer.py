"""Receive messages on demand, acknowledge some, and get the others again.

Shows `SimpleConsumer`: `receive`, `ack`, `change_invisible_duration`.

    python examples/simple_consumer.py [NAME_SERVERS]
"""

import asyncio
import sys

from batonmq import Admin, ConsumeFromWhere, Message, Producer, SimpleConsumer


async def main(namesrv: str) -> None:
    async with Admin(namesrv) as admin:
        await admin.create_topic("images", queues=2)
    async with Producer("uploads", namesrv) as producer:
        for number in range(6):
            await producer.send(Message("images", b"%d" % number))

    async with SimpleConsumer("thumbnails", namesrv, from_where=ConsumeFromWhere.FIRST_OFFSET) as consumer:
        consumer.subscribe("images")
        done: list[int] = []
        while len(done) < 6:
            for message in await consumer.receive(4, invisible_duration=30, wait=20):
                number = int(message.body)
                if number == 3 and message.reconsume_times == 0:
                    print("image 3 has to wait a second")
                    await consumer.change_invisible_duration(message, 1)
                    continue
                done.append(number)
                await consumer.ack(message)
        print(f"images {sorted(done)} are done, {done[-1]} last")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:2] or ["127.0.0.1:9876"]))
