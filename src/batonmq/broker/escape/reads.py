"""Reads single messages of other broker sets: RocketMQ brokers that act as master write check points here.

Source: RocketMQ's `EscapeBridge.getMessage`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from batonmq.broker.escape.addresses import address_of
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.headers.broker.pull import PullMessage
from batonmq.protocol.message.errors import MessageFormatError
from batonmq.protocol.message.record import MessageExt, decode_record, scan_frames

if TYPE_CHECKING:
    from batonmq.broker.context import Broker

TIMEOUT_MS: Final = 10_000
_ANSWERS: Final = (
    ResponseCode.SUCCESS,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)


class RemoteReader:
    """Reads from the broker that serves a broker set: its master, or the slave that acts as master."""

    def __init__(self, broker: Broker) -> None:
        config = broker.settings.broker
        self._broker = broker
        self._group = f"InnerConsumerGroup_{config.broker_name}_{config.broker_id}"

    async def read(self, broker_name: str, topic: str, queue_id: int, offset: int) -> MessageExt | None:
        """The message at a queue offset, its body not inflated; None if that broker set no longer has it.
        Raises OSError, `NetError` or `MQError` if that is unknown."""
        cluster = self._broker.settings.broker.broker_cluster_name
        for other in self._broker.neighbours():
            config = other.settings.broker
            if (config.broker_cluster_name, config.broker_name) == (
                cluster,
                broker_name,
            ) and other.role.serves:
                found = other.store.get(topic, queue_id, offset, 1)
                if found.fetch is not None:
                    await asyncio.get_running_loop().run_in_executor(other.readers, found.fetch)
                return _message(b"".join(found.buffers), offset)
        address = await address_of(self._broker, broker_name, topic)
        header = PullMessage.at_once(self._group, topic, queue_id, offset, 1)
        answer = await self._broker.client.call(address, header, timeout_ms=TIMEOUT_MS, accept=_ANSWERS)
        return _message(bytes(answer.body), offset) if answer.code == ResponseCode.SUCCESS else None


def _message(data: bytes, offset: int) -> MessageExt | None:
    """The record at this offset; if the start of the queue was deleted, the answer has a later one."""
    for at in scan_frames(data)[:-1]:
        try:
            record = decode_record(data, at, inflate=False)
        except MessageFormatError:
            return None
        if record.queue_offset == offset:
            return record
    return None
