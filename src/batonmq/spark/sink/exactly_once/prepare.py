"""A task of the exactly-once sink: it stores its rows as half messages, many at a time."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from batonmq.client.half_producer import Half, HalfProducer
from batonmq.client.hooks import TransactionState
from batonmq.client.producer import Producer
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.message.batch import decode_batch
from batonmq.protocol.message.properties import decode_properties
from batonmq.protocol.message.record import MessageExt
from batonmq.spark.sink.encode import MARK_PROPERTY, Encoded, Single
from batonmq.spark.sink.exactly_once.core import Mark, Unit, is_left_over
from batonmq.spark.sink.options import SinkOptions
from batonmq.spark.sink.send import Send, Sending, Written, message_of, producer_options
from batonmq.spark.worker import settle

SINGLES_IN_FLIGHT: Final = 256
"""Most pending half messages of one row, for brokers that do not accept batches."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """Half messages that one task has prepared."""

    units: list[Unit]
    """In the order of its rows."""
    written: Written


def prepare_rows(batches: Iterator[pa.RecordBatch], options: SinkOptions, mark: Mark) -> Prepared:
    """Store all rows as half messages, and return once all are acknowledged. Raises as `write_rows`."""
    settle()
    with _Preparing(options, mark) as preparing:
        written = preparing.send_all(batches)
        return Prepared(preparing.units(), written)


def half_producer(options: SinkOptions, mark: Mark, tls: ssl.SSLContext | None) -> HalfProducer:
    """A producer that answers checks according to `is_left_over`."""

    def check(message: MessageExt) -> TransactionState:
        asked = Mark.parse(message.properties.get(MARK_PROPERTY))
        left_over = is_left_over(asked, mark.run, mark.epoch)
        return TransactionState.ROLLBACK if left_over else TransactionState.UNKNOWN

    return HalfProducer(options.group, options.namesrv, check=check, **producer_options(options, tls))


class _Preparing(Sending):
    def __init__(self, options: SinkOptions, mark: Mark) -> None:
        self._mark = mark
        self._properties = {MARK_PROPERTY: mark.text()}
        self._units: dict[int, list[Unit]] = {}
        """Number of a part of the rows -> its half messages."""
        self._no_batches: set[str] = set()
        """Broker sets that do not accept batches."""
        super().__init__(options)
        self._singles = asyncio.Semaphore(SINGLES_IN_FLIGHT)

    def _new_producer(self, tls: ssl.SSLContext | None) -> Producer:
        self._halves = half_producer(self._options, self._mark, tls)
        return self._halves

    def units(self) -> list[Unit]:
        """All prepared half messages, in the order of the rows."""
        return [unit for number in sorted(self._units) for unit in self._units[number]]

    def _start(self, work: Encoded | Single) -> None:
        # Unlike sends, half messages of one queue may overtake each other: the order of the ends counts.
        task = self._loop.create_task(self._deliver(work, None, self._sender(work)))
        self._free.add(task)
        task.add_done_callback(self._free.discard)

    def _sender(self, work: Encoded | Single) -> Send:
        number = len(self._units)
        self._units[number] = []
        message = message_of(work)

        async def send(timeout_ms: int) -> None:
            broker = None if work.queue is None else work.queue.broker_name
            if isinstance(work, Encoded) and (
                broker in self._no_batches or (not broker and self._no_batches)
            ):
                self._units[number] = await self._one_by_one(work)
                return
            try:
                half = await self._halves.prepare(
                    message, self._properties, queue=work.queue, timeout_ms=timeout_ms
                )
            except MQError as error:
                if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED or not isinstance(work, Encoded):
                    raise
                self._no_batches.add(broker or "")
                self._units[number] = await self._one_by_one(work)
            else:
                self._units[number] = [_unit(half, work)]

        return send

    async def _one_by_one(self, work: Encoded) -> list[Unit]:
        """A half message for each row, for RocketMQ's brokers."""
        items = list(decode_batch(work.body))
        found: list[Unit | None] = [None] * len(items)

        async def prepare(at: int) -> None:
            single = Single(
                work.topic, work.queue, bytes(items[at].body), decode_properties(items[at].properties)
            )
            message = message_of(single)

            async def send(timeout_ms: int) -> None:
                half = await self._halves.prepare(
                    message, self._properties, queue=work.queue, timeout_ms=timeout_ms
                )
                found[at] = _unit(half, single)

            async with self._singles:
                await self._until_safe(single, send)

        try:
            async with asyncio.TaskGroup() as group:
                for at in range(len(items)):
                    group.create_task(prepare(at))
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        return [unit for unit in found if unit is not None]


def _unit(half: Half, work: Encoded | Single) -> Unit:
    batch = isinstance(work, Encoded)
    return Unit(
        topic=work.topic,
        broker=half.broker_name,
        queue_id=half.queue.queue_id,
        half_offset=half.half_offset,
        commit_log_offset=half.commit_log_offset,
        key=half.message_id,
        rows=work.count if isinstance(work, Encoded) else 1,
        size=len(work.body),
        batch=batch,
        ordered=work.queue is not None,
    )
