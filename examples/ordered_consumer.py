"""Steps of each account in their order, although some have to be tried again.

Shows a selector that sends all messages of one account to one queue, `Consumer(orderly=True)`, which handles
the messages of a queue one after the other, and `RetryLater`: the message comes again before the next one.

    python examples/ordered_consumer.py [NAME_SERVERS]
"""

import asyncio
import sys
from collections.abc import Sequence

from batonmq import Admin, ConsumeFromWhere, Consumer, Message, MessageExt, MessageQueue, Producer, RetryLater

ACCOUNTS, STEPS = 3, 5


def queue_of_account(queues: Sequence[MessageQueue], message: Message) -> MessageQueue:
    return queues[int(message.keys[0]) % len(queues)]


async def main(namesrv: str) -> None:
    async with Admin(namesrv) as admin:
        await admin.create_topic("account-steps", queues=2)
    async with Producer("accounts", namesrv) as producer:
        for step in range(STEPS):
            for number in range(ACCOUNTS):
                message = Message("account-steps", b"%d" % step, keys=[str(number)])
                await producer.send(message, selector=queue_of_account)

    handled: dict[str, list[int]] = {str(account): [] for account in range(ACCOUNTS)}
    finished = asyncio.Event()

    async def handle(message: MessageExt) -> None:
        account, step = message.keys[0], int(message.body)
        if step == 2 and message.reconsume_times == 0:
            print(f"account {account}: step {step} fails and is tried again")
            raise RetryLater
        handled[account].append(step)
        if sum(map(len, handled.values())) == ACCOUNTS * STEPS:
            finished.set()

    consumer = Consumer("ledger", namesrv, orderly=True, from_where=ConsumeFromWhere.FIRST_OFFSET)
    consumer.subscribe("account-steps", "*", handle)
    async with consumer:
        await finished.wait()
    for account, steps in handled.items():
        print(f"account {account}: steps {steps}")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:2] or ["127.0.0.1:9876"]))
