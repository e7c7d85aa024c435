"""Send messages if, and only if, a database transaction is committed.

Shows `TransactionProducer`: the context, `rollback`, and the check that brokers ask for when the producer did
not say what became of a transaction. The database here is a dictionary.

    python examples/transactions.py [NAME_SERVERS]
"""

import asyncio
import sys

from batonmq import (
    Admin,
    ConsumeFromWhere,
    Consumer,
    Message,
    MessageExt,
    TransactionProducer,
    TransactionState,
)

database: dict[str, int] = {"alice": 50}


async def check(message: MessageExt) -> TransactionState:
    """Brokers ask, for one after this program was killed inside the context."""
    return TransactionState.COMMIT if message.keys[0] in database else TransactionState.ROLLBACK


async def main(namesrv: str) -> None:
    async with Admin(namesrv) as admin:
        await admin.create_topic("payments", queues=1)
    async with TransactionProducer("shop", namesrv, check=check) as producer:
        async with producer.transaction(Message("payments", b"17 paid", keys="order-17")):
            database["alice"] -= 20
            database["order-17"] = 20  # with the same key as the message, so that check finds it

        async with producer.transaction(Message("payments", b"18 paid", keys="order-18")) as transaction:
            if database["alice"] < 100:
                await transaction.rollback()
                print("order 18: not enough money")

    finished = asyncio.Event()

    async def handle(message: MessageExt) -> None:
        print(f"delivered: {message.body.decode()}")
        finished.set()

    consumer = Consumer("shipping", namesrv, from_where=ConsumeFromWhere.FIRST_OFFSET)
    consumer.subscribe("payments", "*", handle)
    async with consumer:
        await finished.wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:2] or ["127.0.0.1:9876"]))
