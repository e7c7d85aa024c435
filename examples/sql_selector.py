"""Receive only messages whose properties match.

Shows `sql`; brokers need `enablePropertyFilter=true`.

    python examples/sql_selector.py [NAME_SERVERS]
"""

import asyncio
import sys
from uuid import uuid4

from batonmq import Admin, ConsumeFromWhere, Consumer, Message, MessageExt, Producer, sql


async def main(namesrv: str) -> None:
    async with Admin(namesrv) as admin:
        await admin.create_topic("sales", queues=1)
    run = uuid4().hex  # of this run: messages of an earlier one are left out
    async with Producer("shops", namesrv) as producer:
        for amount, region in ((50, "eu"), (150, "eu"), (150, "us"), (250, "eu")):
            properties = {"run": run, "amount": str(amount), "region": region}
            await producer.send(Message("sales", f"{amount} in {region}".encode(), properties=properties))

    received: list[str] = []
    finished = asyncio.Event()

    def handle(message: MessageExt) -> None:
        received.append(message.body.decode())
        if len(received) == 2:
            finished.set()

    consumer = Consumer("audit", namesrv, from_where=ConsumeFromWhere.FIRST_OFFSET)
    consumer.subscribe("sales", sql(f"run = '{run}' AND amount > 100 AND region = 'eu'"), handle)
    async with consumer:
        await finished.wait()
    print(f"large sales in the eu: {received}")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:2] or ["127.0.0.1:9876"]))
