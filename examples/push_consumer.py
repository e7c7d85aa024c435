"""Consume orders as a member of a group; start it several times, and the members share the queues.

Shows `Consumer`: a handler per message, tags, where a new group begins. Messages whose handler returned are
done; the group continues after them when it starts again.

    python examples/push_consumer.py [NAME_SERVERS [COUNT]]     # ends after COUNT messages, else with Ctrl-C
"""

import asyncio
import sys

from batonmq import ConsumeFromWhere, Consumer, MessageExt


async def main(namesrv: str = "127.0.0.1:9876", count: str = "0") -> None:
    handled = 0
    finished = asyncio.Event()

    async def handle(message: MessageExt) -> None:
        nonlocal handled
        handled += 1
        print(f"{message.body.decode()} ({message.tags}) from queue {message.queue_id}", flush=True)
        if handled == int(count):
            finished.set()

    consumer = Consumer("billing", namesrv, from_where=ConsumeFromWhere.FIRST_OFFSET)
    consumer.subscribe("orders", "paid || sent", handle)
    async with consumer:  # joins the group; at the end it commits its offsets and leaves
        await finished.wait()
    print(f"{handled} messages handled")


if __name__ == "__main__":
    try:
        asyncio.run(main(*sys.argv[1:3]))
    except KeyboardInterrupt:
        print("stopped")
