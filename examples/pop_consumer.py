"""Share the messages of one queue among several clients, and give one message more time than it was promised.

Shows `PopConsumer`: brokers hand out messages one by one, so two clients can work on one queue, and a slow
handler holds back nothing but its own message.

    python examples/pop_consumer.py [NAME_SERVERS]
"""

import asyncio
import sys
from collections import Counter

from batonmq import Admin, ConsumeFromWhere, Message, MessageExt, PopConsumer, Producer

MESSAGES = 20


async def main(namesrv: str) -> None:
    async with Admin(namesrv) as admin:
        await admin.create_topic("thumbnails", queues=1)
    async with Producer("uploads", namesrv) as producer:
        for number in range(MESSAGES):
            await producer.send(Message("thumbnails", b"%d" % number))

    handled: Counter[bytes] = Counter()
    finished = asyncio.Event()

    async def handle(message: MessageExt) -> None:
        # Longer than invisible_duration: the consumer hides the message again in time.
        await asyncio.sleep(8 if message.body == b"7" else 0.05)
        handled[message.body] += 1
        if len(handled) == MESSAGES:
            finished.set()

    consumers = [
        PopConsumer(
            "workers",
            namesrv,
            from_where=ConsumeFromWhere.FIRST_OFFSET,
            invisible_duration=5,
            concurrency=2,
            pop_batch_size=4,
        )
        for _ in range(2)
    ]
    for consumer in consumers:
        consumer.subscribe("thumbnails", "*", handle)
    async with consumers[0], consumers[1]:
        await finished.wait()
    print(f"{len(handled)} messages of one queue, each handled {max(handled.values())} time")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:2] or ["127.0.0.1:9876"]))
