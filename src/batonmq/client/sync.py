"""The same client for code without an event loop: each object runs an event loop in its own thread.

    from batonmq import sync

    with sync.Producer("group", namesrv="127.0.0.1:9876") as producer:
        producer.send(sync.Message("orders", b"…"))

Methods block and raise what the asynchronous ones raise. Objects may be used from several threads, but not
from a process that was forked after they were made: there all methods raise RuntimeError.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from datetime import timedelta
from types import TracebackType
from typing import Any, Protocol, Self

from batonmq.client import consumer as _consumer
from batonmq.client import message_trace as _message_trace
from batonmq.client import pop_consumer as _pop_consumer
from batonmq.client import producer as _producer
from batonmq.client import reader as _reader
from batonmq.client import simple_consumer as _simple_consumer
from batonmq.client import transactions as _transactions
from batonmq.client.filter import Expression, sql
from batonmq.client.hooks import Delivery, Hook, Sending, TransactionEnd, TransactionState
from batonmq.client.loop_thread import LoopThread
from batonmq.client.message import Message, SendResult
from batonmq.client.push.retries import RetryLater
from batonmq.client.worker_threads import WorkerThreads
from batonmq.protocol.bodies.common import MessageQueue
from batonmq.protocol.codes import ALL_TAGS
from batonmq.protocol.message.record import MessageExt
from batonmq.protocol.signing import Credentials

__all__ = [
    "Consumer",
    "Credentials",
    "Message",
    "MessageExt",
    "MessageTrace",
    "PopConsumer",
    "Producer",
    "QueueReader",
    "RetryLater",
    "SendResult",
    "SimpleConsumer",
    "TransactionProducer",
    "TransactionState",
    "sql",
]

ORDERLY_THREADS = 1_000
"""Most handlers of an orderly consumer at a time: each of its queues may have one."""


class _Startable(Protocol):
    async def start(self) -> None: ...
    async def close(self) -> None: ...


class _Client:
    """What is common to all clients but push consumers."""

    _inner: _Startable

    def __init__(self, inner: _Startable, name: str) -> None:
        self._inner = inner
        self._loop = LoopThread(f"batonmq-{name}")

    def start(self) -> None:
        """Connect, and join the group if there is one; ``with`` does it. Raises `NoNameServer`."""
        self._loop.call_or_close(self._inner.start)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Send what is collected, leave the group, and close all connections."""
        self._loop.close(self._inner.close)


class Producer(_Client):
    """`batonmq.Producer`, blocking; takes the same arguments."""

    _inner: _producer.Producer

    def __init__(self, group: str, namesrv: str | Iterable[str], **options: Any) -> None:
        super().__init__(_producer.Producer(group, namesrv, **options), "producer")

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

    def recall(self, topic: str, handle: str, *, timeout_ms: int = 3_000) -> str:
        """Cancel a delayed message; returns its unique id."""
        return self._loop.call(lambda: self._inner.recall(topic, handle, timeout_ms=timeout_ms))

    def request(
        self, message: Message, *, queue: MessageQueue | None = None, timeout_ms: int = 3_000
    ) -> MessageExt:
        """Send a message and wait for the reply of whoever consumes it."""
        return self._loop.call(lambda: self._inner.request(message, queue=queue, timeout_ms=timeout_ms))

    def reply(
        self,
        message: MessageExt,
        body: bytes | bytearray | memoryview,
        *,
        properties: Mapping[str, str] | None = None,
        timeout_ms: int = 3_000,
    ) -> None:
        """Reply to a request message."""
        self._loop.call(
            lambda: self._inner.reply(message, body, properties=properties, timeout_ms=timeout_ms)
        )

    def queues(self, topic: str) -> list[MessageQueue]:
        """Queues of a topic that can be written to now."""
        return self._loop.call(lambda: self._inner.queues(topic))


class TransactionProducer(Producer):
    """`batonmq.TransactionProducer`, blocking; ``check`` is a plain function, called in a worker thread."""

    _inner: _transactions.TransactionProducer

    def __init__(
        self,
        group: str,
        namesrv: str | Iterable[str],
        *,
        check: Callable[[MessageExt], TransactionState] | None = None,
        check_concurrency: int = 16,
        **options: Any,
    ) -> None:
        if check is None:
            raise TypeError("a transaction producer needs check=")
        self._threads = WorkerThreads("batonmq-check", check_concurrency)
        inner = _transactions.TransactionProducer(
            group,
            namesrv,
            check=self._threads.calling(check),
            check_concurrency=check_concurrency,
            **options,
        )
        _Client.__init__(self, inner, "producer")

    def close(self) -> None:
        """Leave the group and close all connections. Open transactions are left to the brokers' checks."""
        try:
            super().close()
        finally:
            self._threads.close()

    def transaction(
        self, message: Message, *, queue: MessageQueue | None = None, timeout_ms: int | None = None
    ) -> Transaction:
        """A context in which the local transaction of a message runs."""
        return Transaction(self._inner.transaction(message, queue=queue, timeout_ms=timeout_ms), self._loop)


class Transaction:
    """The message of one local transaction; see `batonmq.TransactionProducer`."""

    def __init__(self, inner: _transactions.Transaction, loop: LoopThread) -> None:
        self._inner = inner
        self._loop = loop

    @property
    def transaction_id(self) -> str:
        """What ``check`` gets as the message's id: keep it with the local transaction."""
        return self._inner.transaction_id

    @property
    def state(self) -> TransactionState:
        """What was decided inside the context."""
        return self._inner.state

    def __enter__(self) -> Self:
        self._loop.call(self._inner.__aenter__)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call(lambda: self._inner.__aexit__(kind, error, trace))

    def commit(self) -> None:
        """Have the message delivered."""
        self._loop.call(self._inner.commit)

    def rollback(self) -> None:
        """Drop the message."""
        self._loop.call(self._inner.rollback)


class _PushConsumer:
    """What both kinds of consumers with handlers have in common."""

    def __init__(
        self, inner: _consumer.Consumer | _pop_consumer.PopConsumer, orderly: bool, concurrency: int
    ) -> None:
        self._inner = inner
        self._threads = WorkerThreads("batonmq-handler", ORDERLY_THREADS if orderly else concurrency)
        self._loop = LoopThread("batonmq-consumer")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def subscribe(
        self,
        topic: str,
        expression: Expression,
        handler: Callable[[Any], None],
        *,
        batch_size: int | None = None,
    ) -> None:
        """Have a function called, in a worker thread, with each message of a topic.

        Whatever it raises fails the message; `sys.exit()` ends nothing else.
        """
        self._inner.subscribe(topic, expression, self._threads.calling(handler), batch_size=batch_size)

    def reply(
        self,
        message: MessageExt,
        body: bytes | bytearray | memoryview,
        *,
        properties: Mapping[str, str] | None = None,
        timeout_ms: int = 3_000,
    ) -> None:
        """Reply to a request message; handlers may call it."""
        self._loop.call(
            lambda: self._inner.reply(message, body, properties=properties, timeout_ms=timeout_ms)
        )

    def start(self) -> None:
        """Join the group and begin."""
        self._loop.call_or_close(self._inner.start)

    def stop(self) -> None:
        """Stop pulling, let running handlers end, commit, leave the group."""
        try:
            self._loop.close(self._inner.stop)
        finally:
            self._threads.close()


class Consumer(_PushConsumer):
    """`batonmq.Consumer` with plain functions as handlers, which may block; takes the same arguments."""

    def __init__(
        self,
        group: str,
        namesrv: str | Iterable[str],
        *,
        orderly: bool = False,
        concurrency: int = 20,
        **options: Any,
    ) -> None:
        inner = _consumer.Consumer(group, namesrv, orderly=orderly, concurrency=concurrency, **options)
        super().__init__(inner, orderly, concurrency)


class PopConsumer(_PushConsumer):
    """`batonmq.PopConsumer` with plain functions as handlers, which may block; takes the same arguments."""

    def __init__(
        self,
        group: str,
        namesrv: str | Iterable[str],
        *,
        orderly: bool = False,
        concurrency: int = 20,
        **options: Any,
    ) -> None:
        inner = _pop_consumer.PopConsumer(group, namesrv, orderly=orderly, concurrency=concurrency, **options)
        super().__init__(inner, orderly, concurrency)


class SimpleConsumer(_Client):
    """`batonmq.SimpleConsumer`, blocking; takes the same arguments."""

    _inner: _simple_consumer.SimpleConsumer

    def __init__(self, group: str, namesrv: str | Iterable[str], **options: Any) -> None:
        super().__init__(_simple_consumer.SimpleConsumer(group, namesrv, **options), "simple-consumer")

    def subscribe(self, topic: str, expression: Expression = "*") -> None:
        """Receive a topic's messages whose tags fit, or whose properties do (`sql`)."""

        async def subscribe() -> None:
            self._inner.subscribe(topic, expression)

        self._loop.call(subscribe)

    def unsubscribe(self, topic: str) -> None:
        """Receive no more messages of a topic."""

        async def unsubscribe() -> None:
            self._inner.unsubscribe(topic)

        self._loop.call(unsubscribe)

    def receive(
        self,
        max_messages: int = 32,
        *,
        invisible_duration: timedelta | float | None = None,
        wait: timedelta | float = 20,
    ) -> list[MessageExt]:
        """Up to ``max_messages``; empty when none came within ``wait``."""
        return self._loop.call(
            lambda: self._inner.receive(max_messages, invisible_duration=invisible_duration, wait=wait)
        )

    def ack(self, messages: MessageExt | Iterable[MessageExt], *, timeout_ms: int = 3_000) -> None:
        """The messages are consumed."""
        self._loop.call(lambda: self._inner.ack(messages, timeout_ms=timeout_ms))

    def change_invisible_duration(
        self, message: MessageExt, duration: timedelta | float, *, timeout_ms: int = 3_000
    ) -> None:
        """Hide a message for so long from now on."""
        self._loop.call(
            lambda: self._inner.change_invisible_duration(message, duration, timeout_ms=timeout_ms)
        )


class MessageTrace(_Client, Hook):
    """`batonmq.MessageTrace` for blocking and asynchronous clients; takes the same arguments."""

    _inner: _message_trace.MessageTrace

    def __init__(self, namesrv: str | Iterable[str], **options: Any) -> None:
        super().__init__(_message_trace.MessageTrace(namesrv, **options), "trace")

    @property
    def dropped(self) -> int:
        """Traces that could not be sent."""
        return self._inner.dropped

    def sending(self, sending: Sending) -> AbstractContextManager[None]:
        return self._inner.sending(sending)

    def handling(self, delivery: Delivery) -> AbstractContextManager[None]:
        return self._inner.handling(delivery)

    def transaction_ended(self, end: TransactionEnd) -> None:
        self._inner.transaction_ended(end)


class QueueReader(_Client):
    """`batonmq.QueueReader`, blocking; takes the same arguments."""

    _inner: _reader.QueueReader

    def __init__(self, namesrv: str | Iterable[str], **options: Any) -> None:
        super().__init__(_reader.QueueReader(namesrv, **options), "reader")

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

    def check(self, topic: str, expression: Expression) -> None:
        """Have a broker check an SQL expression."""
        self._loop.call(lambda: self._inner.check(topic, expression))

    def pull(
        self,
        queue: MessageQueue,
        offset: int,
        max_count: int = 1024,
        max_bytes: int = 4 * 1024 * 1024,
        *,
        expression: Expression = ALL_TAGS,
    ) -> _reader.Pulled:
        """Records from an offset on."""
        return self._loop.call(
            lambda: self._inner.pull(queue, offset, max_count, max_bytes, expression=expression)
        )

    def messages(self, topic: str) -> Iterator[MessageExt]:
        """What a topic holds now, queue by queue, decoded."""
        return self._iterated(self._inner.messages(topic))

    def dead_letters(self, group: str) -> Iterator[MessageExt]:
        """Messages that a group failed to consume too often."""
        return self._iterated(self._inner.dead_letters(group))

    def _iterated(self, messages: AsyncIterator[MessageExt]) -> Iterator[MessageExt]:
        async def following() -> MessageExt | None:
            return await anext(messages, None)

        while (message := self._loop.call(following)) is not None:
            yield message
