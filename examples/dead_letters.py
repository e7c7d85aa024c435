"""Look at the messages that a group gave up, and send them again once the cause is gone.

Shows `RetryLater(-1)`, `QueueReader.dead_letters` and `Message.from_record`.

    python examples/dead_letters.py [NAME_SERVERS]
"""

import asyncio
import sys

from batonmq import Admin, ConsumeFromWhere, Consumer, Message, MessageExt, Producer, QueueReader, RetryLater


async def main(namesrv: str) -> None:
    async with Admin(namesrv) as admin:
        await admin.create_topic("letters", queues=1)
    repaired = False
    given_up, printed = asyncio.Event(), asyncio.Event()

    def handle(message: MessageExt) -> None:
        if not repaired:
            given_up.set()
            raise RetryLater(-1)  # no other attempt: a dead letter at once
        print(f"printed: {message.body.decode()}")
        printed.set()

    consumer = Consumer("printer", namesrv, from_where=ConsumeFromWhere.FIRST_OFFSET)
    consumer.subscribe("letters", "*", handle)
    async with consumer, Producer("office", namesrv) as producer, QueueReader(namesrv) as reader:
        await producer.send(Message("letters", b"Dear Sir or Madam", keys="letter-1"))
        await given_up.wait()
        dead: list[MessageExt] = []
        while not dead:
            await asyncio.sleep(0.1)
            dead = [message async for message in reader.dead_letters("printer")]
        print(f"dead: {dead[0].keys[0]}, {dead[0].body.decode()}")
        repaired = True
        await producer.send(Message.from_record(dead[0]))
        await printed.wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:2] or ["127.0.0.1:9876"]))
