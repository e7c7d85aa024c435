"""Has handlers work on pulled messages: many at a time, or each queue in its order."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Protocol

from batonmq.client.push.assigned import Assigned
from batonmq.client.push.handlers import Handlers
from batonmq.client.push.locks import QueueLocks
from batonmq.client.push.retries import DEAD_LETTER, RetryLater, SendBack
from batonmq.client.push.subscriptions import Subscriptions
from batonmq.client.push.tasks import cancel, log, spawn
from batonmq.common.clock import Clock
from batonmq.net.errors import NetError
from batonmq.protocol.bodies.clients import MessageModel
from batonmq.protocol.errors import MQError
from batonmq.protocol.message.record import MessageExt

LOCAL_RETRY_S = 5.0
"""When a message could not be sent back to its broker, it is handled again here after this time."""
MAX_ORDERLY_RECONSUME = 2**31 - 1


class Handling(Protocol):
    """What a consumer's other parts see of either kind."""

    def start(self) -> None:
        """The consumer has started."""

    def begin(self, held: Assigned) -> None:
        """A queue is ours now."""

    def take(self, held: Assigned, messages: list[MessageExt]) -> None:
        """Have messages handled, in parts of the subscription's batch size."""

    async def stop(self, timeout_s: float) -> None:
        """Let calls that run end, for so long; begin no others."""


class Calls:
    """Calls of handlers that run now."""

    def __init__(self) -> None:
        self._running = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def enter(self) -> None:
        self._running += 1
        self._idle.clear()

    def leave(self) -> None:
        self._running -= 1
        if not self._running:
            self._idle.set()

    async def end(self, timeout_s: float) -> None:
        """Wait until there are none, at most so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()


class Concurrently:
    """Workers share what all queues bring. What failed goes back to its broker, which delivers it later."""

    def __init__(
        self,
        subscriptions: Subscriptions,
        handlers: Handlers,
        clock: Clock,
        model: MessageModel,
        send_back: SendBack,
        concurrency: int,
    ) -> None:
        self._subscriptions = subscriptions
        self._handlers = handlers
        self._clock = clock
        self._model = model
        self._send_back = send_back
        self._concurrency = concurrency
        self._ready: asyncio.Queue[tuple[Assigned, list[MessageExt]]] = asyncio.Queue()
        self._calls = Calls()
        self._workers: set[asyncio.Task[None]] = set()
        self._stopping = False

    def start(self) -> None:
        for _ in range(self._concurrency):
            spawn(self._work(), self._workers)

    def begin(self, held: Assigned) -> None:
        """Its messages need no separate worker."""

    def take(self, held: Assigned, messages: list[MessageExt]) -> None:
        size = self._subscriptions[held.queue.topic].batch_size
        for begin in range(0, len(messages), size):
            self._ready.put_nowait((held, messages[begin : begin + size]))

    async def stop(self, timeout_s: float) -> None:
        self._stopping = True
        await self._calls.end(timeout_s)
        await cancel(self._workers)

    async def _work(self) -> None:
        while not self._stopping:  # a handler may have suppressed the cancellation
            held, messages = await self._ready.get()
            if held.dropped:
                continue
            self._calls.enter()
            try:
                await self._handle(held, messages)
            finally:
                self._calls.leave()

    async def _handle(self, held: Assigned, messages: list[MessageExt]) -> None:
        held.last_consume_ms = self._clock.now_ms()
        try:
            await self._handlers(held.queue.topic, messages)
        except Exception as error:
            level = error.delay_level if isinstance(error, RetryLater) else 0
            if not isinstance(error, RetryLater):
                log.exception("handler failed on %s offset %d", held.queue, messages[0].queue_offset)
            messages = await self._failed(held, messages, level)
        held.buffer.done(messages)
        held.room.set()

    async def _failed(self, held: Assigned, messages: list[MessageExt], level: int) -> list[MessageExt]:
        """Have failed messages delivered again; those that are taken care of elsewhere."""
        if self._model is MessageModel.BROADCASTING:
            log.warning("%d messages of %s are dropped: broadcasting has no retry", len(messages), held.queue)
            return messages
        sent_back: list[MessageExt] = []
        for message in messages:
            try:
                await self._send_back(held.queue, message, level)
                sent_back.append(message)
            except (NetError, MQError) as error:
                log.warning("offset %d of %s is retried here: %s", message.queue_offset, held.queue, error)
                message.reconsume_times += 1
                asyncio.get_running_loop().call_later(
                    LOCAL_RETRY_S, self._ready.put_nowait, (held, [message])
                )
        return sent_back


class InOrder:
    """Each queue has a worker, which tries a message until it succeeds, ``pause_s`` apart."""

    def __init__(
        self,
        subscriptions: Subscriptions,
        handlers: Handlers,
        clock: Clock,
        locks: QueueLocks,
        send_back: SendBack,
        max_reconsume_times: int | None,
        pause_s: float,
    ) -> None:
        self._subscriptions = subscriptions
        self._handlers = handlers
        self._clock = clock
        self._locks = locks
        self._send_back = send_back
        self._limit = MAX_ORDERLY_RECONSUME if max_reconsume_times is None else max_reconsume_times
        self._pause_s = pause_s
        self._calls = Calls()

    def start(self) -> None:
        """Workers come with the queues."""

    def begin(self, held: Assigned) -> None:
        spawn(self._work(held), held.tasks)

    def take(self, held: Assigned, messages: list[MessageExt]) -> None:
        size = self._subscriptions[held.queue.topic].batch_size
        for begin in range(0, len(messages), size):
            held.orderly.put_nowait(messages[begin : begin + size])

    async def stop(self, timeout_s: float) -> None:
        await self._calls.end(timeout_s)

    async def _work(self, held: Assigned) -> None:
        """One message of the queue after the other, each until it succeeds."""
        while not held.dropped:  # a handler may have suppressed the cancellation
            messages = await held.orderly.get()
            while messages and not held.dropped:
                if not await self._locks.may_work(held):
                    continue
                async with held.working:
                    if held.dropped:
                        return
                    messages = await self._handle(held, messages)
                if messages:
                    await asyncio.sleep(self._pause_s)
            held.room.set()

    async def _handle(self, held: Assigned, messages: list[MessageExt]) -> list[MessageExt]:
        """What is to be tried again."""
        self._calls.enter()
        try:
            held.last_consume_ms = self._clock.now_ms()
            await self._handlers(held.queue.topic, messages)
            held.buffer.done(messages)
            return []
        except Exception as error:
            level = error.delay_level if isinstance(error, RetryLater) else 0
            if not isinstance(error, RetryLater):
                log.exception("handler failed on %s offset %d", held.queue, messages[0].queue_offset)
            return await self._failed(held, messages, level)
        finally:
            self._calls.leave()

    async def _failed(self, held: Assigned, messages: list[MessageExt], level: int) -> list[MessageExt]:
        """What is to be tried again in place; messages over the limit go to the dead letter topic, and all do
        if the handler wants it. Other delay levels mean nothing here."""
        again: list[MessageExt] = []
        for message in messages:
            message.reconsume_times += 1
            if level == DEAD_LETTER or message.reconsume_times > self._limit:
                try:
                    await self._send_back(held.queue, message, DEAD_LETTER)
                    held.buffer.done([message])
                    continue
                except (NetError, MQError) as error:
                    log.warning("offset %d of %s: %s", message.queue_offset, held.queue, error)
            again.append(message)
        return again
