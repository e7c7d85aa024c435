"""The same client for code without an event loop: each object runs an event loop in its own thread.

    from batonmq import sync

    with sync.Producer("group", namesrv="127.0.0.1:9876") as producer:
        producer.send(sync.Message("orders", b"…"))

Methods block and raise what the asynchronous ones raise. Objects may be used from several threads.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self, TypeVar

import uvloop

from batonmq.client import consumer as _consumer
from batonmq.client import producer as _producer
from batonmq.client import reader as _reader
from batonmq.client.message import Message, SendResult
from batonmq.client.push.retries import RetryLater
from batonmq.net.errors import NetError
from batonmq.protocol.bodies.common import MessageQueue
from batonmq.protocol.errors import MQError
from batonmq.protocol.message.record import MessageExt

__all__ = ["Consumer", "Message", "MessageExt", "Producer", "QueueReader", "RetryLater", "SendResult"]

T = TypeVar("T")


class _Loop:
    """An event loop in a daemon thread."""

    def __init__(self, name: str) -> None:
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()
        self._lock = threading.Lock()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        with self._lock:
            if self._loop.is_closed():
                work.close()
                raise RuntimeError("this client is closed")
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    def call(self, function: Callable[[], Coroutine[Any, Any, T]]) -> T:
        if threading.current_thread() is self._thread:
            raise RuntimeError("a blocking call from a handler: use the asynchronous client there")
        return self.submit(function()).result()

    def call_or_close(self, function: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """`call` for a start: where it fails because of the network, nothing is left behind."""
        try:
            self.call(function)
        except (NetError, MQError):
            self.close()
            raise

    def close(self) -> None:
        with self._lock:
            if self._loop.is_closed():
                return
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    @property
    def closed(self) -> bool:
        return self._loop.is_closed()


class Producer:
    """`batonmq.Producer`, blocking; takes the same arguments."""

    def __init__(self, group: str, namesrv: str | Iterable[str], **options: Any) -> None:
        self._inner = _producer.Producer(group, namesrv, **options)
        self._loop = _Loop("batonmq-producer")

    def start(self) -> None:
        """See that a name server can be reached; ``with`` does it. Raises `NoNameServer`."""
        self._loop.call_or_close(self._inner.start)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def send(
        self,
        message: Message | Sequence[Message],
        *,
        queue: MessageQueue | None = None,
        timeout_ms: int | None = None,
    ) -> SendResult:
        """Send and wait for the acknowledgement."""
        return self._loop.call(lambda: self._inner.send(message, queue=queue, timeout_ms=timeout_ms))

    def send_async(
        self,
        message: Message | Sequence[Message],
        *,
        queue: MessageQueue | None = None,
        timeout_ms: int | None = None,
    ) -> Future[SendResult]:
        """Send; the future holds the acknowledgement or the error. Bound how many are under way."""
        return self._loop.submit(self._inner.send(message, queue=queue, timeout_ms=timeout_ms))

    def send_oneway(self, message: Message, *, queue: MessageQueue | None = None) -> None:
        """Send without acknowledgement."""
        self._loop.call(lambda: self._inner.send_oneway(message, queue=queue))

    def queues(self, topic: str) -> list[MessageQueue]:
        """Queues of a topic that can be written to now."""
        return self._loop.call(lambda: self._inner.queues(topic))

    def close(self) -> None:
        """Leave the group and close all connections."""
        if not self._loop.closed:
            self._loop.call(self._inner.close)
            self._loop.close()


class Consumer:
    """`batonmq.Consumer` with plain functions as handlers, which may block; takes the same arguments."""

    def __init__(self, group: str, namesrv: str | Iterable[str], **options: Any) -> None:
        self._inner = _consumer.Consumer(group, namesrv, **options)
        self._loop = _Loop("batonmq-consumer")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def subscribe(
        self, topic: str, expression: str, handler: Callable[[Any], None], *, batch_size: int | None = None
    ) -> None:
        """Have a function called, in a worker thread, with each message of a topic."""

        async def in_thread(messages: Any) -> None:
            await asyncio.get_running_loop().run_in_executor(None, handler, messages)

        self._inner.subscribe(topic, expression, in_thread, batch_size=batch_size)

    def start(self) -> None:
        """Join the group and begin."""
        self._loop.call_or_close(self._inner.start)

    def stop(self) -> None:
        """Stop pulling, let running handlers end, commit, leave the group."""
        if not self._loop.closed:
            self._loop.call(self._inner.stop)
            self._loop.close()


class QueueReader:
    """`batonmq.QueueReader`, blocking; takes the same arguments."""

    def __init__(self, namesrv: str | Iterable[str], **options: Any) -> None:
        self._inner = _reader.QueueReader(namesrv, **options)
        self._loop = _Loop("batonmq-reader")

    def start(self) -> None:
        """See that a name server can be reached; ``with`` does it. Raises `NoNameServer`."""
        self._loop.call_or_close(self._inner.start)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def queues(self, topic: str) -> list[MessageQueue]:
        """The topic's readable queues."""
        return self._loop.call(lambda: self._inner.queues(topic))

    def min_offset(self, queue: MessageQueue) -> int:
        """The first offset that is still stored."""
        return self._loop.call(lambda: self._inner.min_offset(queue))

    def max_offset(self, queue: MessageQueue) -> int:
        """One past the last offset that may be read."""
        return self._loop.call(lambda: self._inner.max_offset(queue))

    def offset_at(self, queue: MessageQueue, store_time_ms: int) -> int:
        """The first offset stored at or after a time (ms)."""
        return self._loop.call(lambda: self._inner.offset_at(queue, store_time_ms))

    def pull(
        self, queue: MessageQueue, offset: int, max_count: int = 1024, max_bytes: int = 4 * 1024 * 1024
    ) -> _reader.Pulled:
        """Records from an offset on."""
        return self._loop.call(lambda: self._inner.pull(queue, offset, max_count, max_bytes))

    def close(self) -> None:
        """Close all connections."""
        if not self._loop.closed:
            self._loop.call(self._inner.close)
            self._loop.close()
