"""RocketMQ's message trace: who sent and who handled which message, stored as messages in a trace topic.

`mqadmin queryMsgTraceById` and the dashboard read it. Brokers have that topic with `traceTopicEnable=true`;
any other topic will do. Format: `TraceDataEncoder` of Apache RocketMQ 5.5 (`trace_format.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

from batonmq.client import trace_format as formats
from batonmq.client.errors import ClientError
from batonmq.client.hooks import Delivery, Hook, Sending, SendKind, TransactionEnd, TransactionState
from batonmq.client.message import Message
from batonmq.client.producer import Producer
from batonmq.client.trace_format import DEFAULT_REGION, Trace
from batonmq.common.clock import Clock, SystemClock
from batonmq.net.errors import NetError
from batonmq.protocol.errors import MQError
from batonmq.protocol.message.properties import PROPERTY_MSG_REGION, PROPERTY_TRACE_SWITCH
from batonmq.protocol.names import TRACE_TOPIC

log = logging.getLogger(__name__)

GROUP_PREFIX = "_INNER_TRACE_PRODUCER"
MAX_QUEUED = 2_048
MAX_BATCH = 100
"""Traces in one message."""
MAX_BATCH_BYTES = 128_000
MAX_KEY_BYTES = 30_000
"""Of all keys of one message, whose properties have at most 32,767 bytes."""
SEND_TIMEOUT_MS = 5_000

_TYPES = {
    SendKind.NORMAL: formats.NORMAL,
    SendKind.DELAYED: formats.DELAYED,
    SendKind.ORDERED: formats.ORDERED,
    SendKind.HALF: formats.HALF,
}


class MessageTrace(Hook):
    """A hook for producers and consumers; several may share one.

        async with MessageTrace(namesrv) as trace:
            async with Producer("orders", namesrv, hooks=[trace]) as producer:
                ...

    Args:
        topic: where traces are stored.
        interval_s: how long traces are collected before they are sent.
        options: of the producer that sends them, such as ``tls`` and ``credentials``.

    Traces that cannot be sent are dropped and counted in ``dropped``; nothing else suffers.
    """

    def __init__(
        self,
        namesrv: str | Iterable[str],
        *,
        topic: str = TRACE_TOPIC,
        interval_s: float = 0.5,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        **options: Any,
    ) -> None:
        self.topic = topic
        self.dropped = 0
        self._interval_s = interval_s
        self._clock: Clock = clock if clock is not None else SystemClock()
        self._rng = rng if rng is not None else random.Random()
        self._producer = Producer(
            f"{GROUP_PREFIX}-{topic}", namesrv, clock=self._clock, rng=self._rng, **options
        )
        self._queue: deque[Trace] = deque()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def start(self) -> None:
        """Raises `NoNameServer` when no name server answers within a few seconds."""
        await self._producer.start()
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Send what is collected, then close the connections."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SEND_TIMEOUT_MS / 1000):
                    await self._flush()
        await self._producer.close()

    # -- hooks

    @contextmanager
    def sending(self, sending: Sending) -> Iterator[None]:
        began_ms = self._clock.now_ms()
        try:
            yield
        finally:
            result = sending.result
            if sending.topic != self.topic and result is not None and result.traced:
                cost_ms = self._clock.now_ms() - began_ms
                first = sending.messages[0]
                self._add(
                    formats.publish(
                        time_ms=began_ms,
                        region=result.region or DEFAULT_REGION,
                        group=sending.group,
                        topic=sending.topic,
                        message_id=result.message_id,
                        tags=first.tags or "",
                        keys=" ".join(first.keys),
                        store_host=sending.address,
                        body_length=sum(len(message.body) for message in sending.messages),
                        cost_ms=cost_ms,
                        message_type=_TYPES[sending.kind],
                        offset_message_id=result.offset_message_id,
                    )
                )

    @contextmanager
    def handling(self, delivery: Delivery) -> Iterator[None]:
        traced = [
            message
            for message in delivery.messages
            if message.properties.get(PROPERTY_TRACE_SWITCH) != "false"
        ]
        if not traced:
            yield
            return
        began_ms = self._clock.now_ms()
        request_id = f"{self._rng.getrandbits(128):032X}"
        region = traced[0].properties.get(PROPERTY_MSG_REGION) or DEFAULT_REGION
        for message in traced:
            self._add(formats.before_handling(began_ms, region, delivery.group, request_id, message))
        outcome = formats.SUCCEEDED
        try:
            yield
        except BaseException:
            outcome = formats.FAILED if delivery.retry_later else formats.RAISED
            raise
        finally:
            cost_ms = (self._clock.now_ms() - began_ms) // len(delivery.messages)
            for message in traced:
                self._add(
                    formats.after_handling(began_ms, delivery.group, request_id, message, cost_ms, outcome)
                )

    def transaction_ended(self, end: TransactionEnd) -> None:
        message = end.message
        region = DEFAULT_REGION
        if not isinstance(message, Message):
            region = message.properties.get(PROPERTY_MSG_REGION) or region
        self._add(
            formats.end_of_transaction(
                time_ms=self._clock.now_ms(),
                region=region,
                group=end.group,
                topic=message.topic,
                message_id=end.message_id,
                tags=message.tags or "",
                keys=" ".join(message.keys),
                store_host=end.address,
                transaction_id=end.transaction_id,
                state=TransactionState(end.state).value,
                from_check=end.from_check,
            )
        )

    # -- sending

    def _add(self, trace: Trace) -> None:
        if len(self._queue) >= MAX_QUEUED:
            self.dropped += 1
            if self.dropped == 1:
                log.warning("message traces are dropped: %d wait to be sent", MAX_QUEUED)
            return
        self._queue.append(trace)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            await self._flush()

    async def _flush(self) -> None:
        while self._queue:
            batch: list[Trace] = []
            keys: dict[str, None] = {}
            size = key_bytes = 0
            while self._queue and len(batch) < MAX_BATCH and size < MAX_BATCH_BYTES:
                more = [key for key in self._queue[0].keys if key not in keys]
                key_bytes += sum(len(key.encode()) + 1 for key in more)
                if batch and key_bytes > MAX_KEY_BYTES:
                    break
                keys |= dict.fromkeys(more)
                batch.append(self._queue.popleft())
                size += len(batch[-1].text)
            message = Message(self.topic, "".join(trace.text for trace in batch).encode(), keys=keys)
            try:
                await self._producer.send(message, timeout_ms=SEND_TIMEOUT_MS)
            except (MQError, NetError, ClientError) as error:
                self.dropped += len(batch)
                log.warning("%d message traces are dropped: %s", len(batch), error)
