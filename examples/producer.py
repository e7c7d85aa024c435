"""Send ten orders and print where each one is stored.

Shows `Producer`: one message at a time, several in one request, and what a send can raise.

    python examples/producer.py [NAME_SERVERS]      # host:port;host:port, default 127.0.0.1:9876
"""

import asyncio
import sys

from batonmq import Message, NotSafelyStored, Producer, SendFailed


async def main(namesrv: str) -> None:
    async with Producer("order-service", namesrv) as producer:
        for number in range(8):
            message = Message("orders", b"order %d" % number, tags="paid", keys=[f"order-{number}"])
            try:
                result = await producer.send(message)
            except NotSafelyStored as error:
                print(f"order {number} is on the master, but disk or slaves did not follow in time: {error}")
            except SendFailed as error:
                print(f"order {number} failed, maybe stored: {error.maybe_stored}")
            else:
                print(f"order {number} is in queue {result.queue.queue_id} at offset {result.queue_offset}")

        # A batch goes to one queue, in one request: all of it is stored, or nothing.
        batch = [Message("orders", b"order %d" % number, tags="sent") for number in (8, 9)]
        result = await producer.send(batch)
        print(f"orders 8 and 9 are in queue {result.queue.queue_id} from offset {result.queue_offset} on")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:2] or ["127.0.0.1:9876"]))
