"""Sends the rows of one task: an event loop in a thread sends while Spark's thread encodes the next rows."""

from __future__ import annotations

import asyncio
import os
import random
import ssl
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

import pyarrow as pa
import uvloop

from batonmq.client.errors import NotSafelyStored, SendFailed
from batonmq.client.message import EncodedBatch, Message
from batonmq.client.producer import Producer
from batonmq.client.reader import QueueReader
from batonmq.common.addresses import local_ip
from batonmq.net.errors import NetError
from batonmq.protocol.bodies.common import MessageQueue
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError, TopicNotExistError
from batonmq.protocol.message.ids import UniqueIds
from batonmq.protocol.message.properties import (
    PROPERTY_DELAY_LEVEL,
    PROPERTY_KEYS,
    PROPERTY_TAGS,
    PROPERTY_UNIQUE_KEY,
    PROPERTY_WAIT_STORE_OK,
    split_keys,
)
from batonmq.spark.options import ClearError
from batonmq.spark.sink.encode import Encoded, Encoder, QueueChoice, Queues, RowError, Single
from batonmq.spark.sink.options import SinkOptions
from batonmq.spark.tls import tls_context
from batonmq.spark.worker import settle

Send = Callable[[int], Awaitable[None]]
"""Sends once, within so many ms."""
REFUSAL_PAUSE_S: Final = 0.1
"""Before a batch is sent again that a broker refused for now, or stored less safely than it should."""


class SinkError(ClearError):
    """Rows that could not be written; the text says what to do."""


@dataclass(frozen=True, slots=True)
class Written:
    """What one task wrote."""

    rows: int
    sends: int
    body_bytes: int


def write_rows(batches: Iterator[pa.RecordBatch], options: SinkOptions) -> Written:
    """Send all rows, and return once all are acknowledged. Raises `SinkError`, `RowError`, `NetError`."""
    settle()
    with Sending(options) as sending:
        return sending.send_all(batches)


class Sending(Queues):
    """A producer on a loop in a thread. Used by one other thread, that of the task."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        tls = tls_context(options.tls)
        self._producer = self._new_producer(tls)
        self._reader = QueueReader(
            options.namesrv,
            retry_timeout_ms=options.send_timeout_ms,
            tls=tls,
            credentials=options.credentials,
        )
        self._room = threading.Semaphore(options.max_in_flight)
        self._queues: dict[str, list[MessageQueue]] = {}
        self._behind: dict[MessageQueue, asyncio.Task[None]] = {}
        """Queue -> the send that the next one to this queue waits for."""
        self._free: set[asyncio.Task[None]] = set()
        """Sends to any queue, under way."""
        self._failure: BaseException | None = None
        self._rows = self._sends = self._bytes = 0
        # After what may fail: nothing ends the thread then.
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="batonmq-sink", daemon=True)
        self._thread.start()

    def _new_producer(self, tls: ssl.SSLContext | None) -> Producer:
        return Producer(self._options.group, self._options.namesrv, **producer_options(self._options, tls))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._call(self._close())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    async def _close(self) -> None:
        for task in [*self._behind.values(), *self._free]:
            task.cancel()
        await asyncio.gather(*self._behind.values(), *self._free, return_exceptions=True)
        await self._producer.close()
        await self._reader.close()

    def _call(self, work: Any) -> Any:
        future: Future[Any] = asyncio.run_coroutine_threadsafe(work, self._loop)
        return future.result()

    # -- queues

    def count(self, topic: str) -> int:
        return len(self._known(topic))

    def of(self, topic: str, choice: QueueChoice) -> MessageQueue | None:
        if choice.free:
            return None
        queues = self._known(topic)
        if choice.queue_id is None:
            assert choice.key_hash is not None
            return queues[choice.key_hash % len(queues)]
        brokers = sorted({queue.broker_name for queue in queues})
        if choice.broker is None and len(brokers) > 1:
            raise RowError(
                f"column 'queueId' does not say which queue of topic {topic!r}: there are the brokers "
                f"{', '.join(brokers)}; add the column 'broker'"
            )
        broker = choice.broker if choice.broker is not None else brokers[0]
        queue = MessageQueue(topic, broker, choice.queue_id)
        if queue not in queues:
            ids = sorted(q.queue_id for q in queues if q.broker_name == broker)
            held = (
                f"broker {broker!r} has queues {ids[0]} to {ids[-1]}"
                if ids
                else f"brokers are {', '.join(brokers)}"
            )
            raise RowError(f"topic {topic!r} has no queue {broker}:{choice.queue_id}; {held}")
        return queue

    def _known(self, topic: str) -> list[MessageQueue]:
        """The topic's queues in one order for all tasks, also while one of its brokers has no master."""
        found = self._queues.get(topic)
        if found is None:
            found = self._queues[topic] = sorted(self._call(self._ask(topic)))
        return found

    async def _ask(self, topic: str) -> list[MessageQueue]:
        """Queues that can be written to, once every broker of the topic has a master: keys would lead to
        other queues otherwise."""
        deadline = self._loop.time() + self._options.send_timeout_ms / 1000
        while True:
            try:
                write = await self._producer.queues(topic)
                read = await self._reader.queues(topic)
            except TopicNotExistError:
                hint = "brokers create topics for rows without a key and a queue only"
                raise _no_topic(topic, self._options.namesrv, hint) from None
            except NetError as error:
                if self._loop.time() > deadline:
                    raise SinkError(f"topic {topic!r}: {error}") from error
                await asyncio.sleep(REFUSAL_PAUSE_S)
                continue
            missing = {q.broker_name for q in read} - {q.broker_name for q in write}
            if write and not missing:
                return write
            if self._loop.time() > deadline:
                names = ", ".join(sorted(missing)) or "of none"
                raise SinkError(
                    f"topic {topic!r}: no queue of broker {names} can be written to; does it have a master, "
                    "and the topic the permission to write (perm 6)?"
                )
            await asyncio.sleep(REFUSAL_PAUSE_S)

    # -- sends

    def send_all(self, batches: Iterator[pa.RecordBatch]) -> Written:
        """Encode and send all rows, and wait until they are acknowledged."""
        options = self._options
        encoder = Encoder(
            UniqueIds(local_ip(), os.getpid(), random.SystemRandom().getrandbits(32)),
            self,
            topic=options.topic,
            include_headers=options.include_headers,
            max_batch_bytes=options.max_batch_bytes,
            max_batch_rows=options.max_batch_rows,
        )
        for rows in batches:
            for work in encoder.encode(rows, time.time_ns() // 1_000_000):
                self.send(work)
        return self.finish()

    def send(self, work: Encoded | Single) -> None:
        """Start a send, as soon as fewer than `max_in_flight` are under way. Raises the first failure."""
        self._room.acquire()
        if self._failure is not None:
            self._room.release()
            raise self._failure
        self._sends += 1
        if isinstance(work, Encoded):
            self._rows += work.count
            self._bytes += len(work.body)
        else:
            self._rows += 1
            self._bytes += len(work.body)
        self._loop.call_soon_threadsafe(self._start, work)

    def finish(self) -> Written:
        """Wait until all is acknowledged. Raises the first failure."""
        for _ in range(self._options.max_in_flight):
            self._room.acquire()
        if self._failure is not None:
            raise self._failure
        return Written(self._rows, self._sends, self._bytes)

    def _start(self, work: Encoded | Single) -> None:
        queue: MessageQueue | None = work.queue
        before = self._behind.get(queue) if queue is not None else None
        task = self._loop.create_task(self._deliver(work, before, self._sender(work)))
        if queue is not None:  # one at a time a queue: a send that is repeated must not be overtaken
            self._behind[queue] = task
        else:
            self._free.add(task)
            task.add_done_callback(self._free.discard)

    def _sender(self, work: Encoded | Single) -> Send:
        """What sends it; called in the order of the rows."""
        message = message_of(work)

        async def send(timeout_ms: int) -> None:
            await self._producer.send(message, queue=work.queue, timeout_ms=timeout_ms)

        return send

    async def _deliver(self, work: Encoded | Single, before: asyncio.Task[None] | None, send: Send) -> None:
        try:
            if before is not None:
                await asyncio.wait([before])
            if self._failure is None:
                await self._until_safe(work, send)
        except BaseException as error:
            if self._failure is None:
                self._failure = error
            if not isinstance(error, Exception):
                raise
        finally:
            self._room.release()

    async def _until_safe(self, work: Encoded | Single, send: Send) -> None:
        """Send until it is stored as safely as the brokers are configured to."""
        deadline = self._loop.time() + self._options.send_timeout_ms / 1000
        while True:
            left_ms = max(1, int((deadline - self._loop.time()) * 1000))
            try:
                await send(left_ms)
                return
            except NotSafelyStored as error:
                if self._loop.time() > deadline:
                    raise SinkError(
                        f"topic {work.topic!r}: {error}; are enough replicas in sync, and is the disk quick?"
                    ) from error
            except TopicNotExistError:
                hint = "or set autoCreateTopicEnable=true on the brokers"
                raise _no_topic(work.topic, self._options.namesrv, hint) from None
            except MQError as error:
                if not error.retryable or self._loop.time() > deadline:
                    raise _refused(work, error) from error
            except SendFailed as error:
                raise SinkError(
                    f"topic {work.topic!r}: no broker acknowledged within {self._options.send_timeout_ms} "
                    f"ms: {error.cause}; is there a master? The option sendTimeoutMs says how long to wait"
                ) from error
            except NetError as error:
                if self._loop.time() > deadline:
                    raise SinkError(f"topic {work.topic!r}: {error}") from error
            await asyncio.sleep(REFUSAL_PAUSE_S)


def producer_options(options: SinkOptions, tls: ssl.SSLContext | None) -> dict[str, Any]:
    """How the sink's producers are made."""
    return {
        "send_timeout_ms": options.send_timeout_ms,
        "retries": 1_000_000,  # the timeout ends it
        "max_message_size": options.max_message_size,
        "tls": tls,
        "credentials": options.credentials,
    }


def message_of(work: Encoded | Single) -> Message | EncodedBatch:
    """What `Producer` sends. It keeps its unique ids, so that a repeated send shows as a duplicate."""
    if isinstance(work, Encoded):
        return EncodedBatch(work.topic, work.body, work.count)
    properties = dict(work.properties)
    properties.pop(PROPERTY_WAIT_STORE_OK, None)
    message = Message(
        work.topic,
        work.body,
        tags=properties.pop(PROPERTY_TAGS, None),
        keys=split_keys(properties.pop(PROPERTY_KEYS, "")),
        delay_level=int(properties.pop(PROPERTY_DELAY_LEVEL, "0")),
    )
    message.unique_id = properties.pop(PROPERTY_UNIQUE_KEY)
    message.properties = properties
    return message


def _no_topic(topic: str, namesrv: str, hint: str) -> SinkError:
    return SinkError(
        f"topic {topic!r} does not exist: name server {namesrv} knows no broker that has it; create it with "
        f"'batonmq admin updateTopic'; {hint}"
    )


def _refused(work: Encoded | Single, error: MQError) -> SinkError:
    hint = ""
    if error.code == ResponseCode.MESSAGE_ILLEGAL:
        hint = (
            "; a smaller maxBatchBytes, or the brokers' maxMessageSize, may help"
            if len(work.body) > 65536
            else ""
        )
    elif error.code == ResponseCode.NO_PERMISSION:
        hint = "; does the topic have the permission to write (perm 6)?"
    return SinkError(f"topic {work.topic!r}: a broker refused messages: {error}{hint}")
