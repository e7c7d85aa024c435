"""Batches: checks that messages may share one request, and encodes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from batonmq.client.message import Message
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.message.batch import BatchItem, encode_batch


def encode_messages(
    messages: Sequence[Message], max_size: int, next_id: Callable[[], str]
) -> tuple[Message, bytes, str]:
    """(a message that stands for the batch, the body, the unique ids joined by commas).

    Messages that have no unique id get one. Raises `MQError` (MESSAGE_ILLEGAL) naming what no broker would
    take.
    """
    if not messages:
        raise MQError(ResponseCode.MESSAGE_ILLEGAL, "the batch is empty")
    first = messages[0]
    items: list[BatchItem] = []
    ids: list[str] = []
    for message in messages:
        message.check(max_size)
        if message.topic != first.topic:
            raise MQError(ResponseCode.MESSAGE_ILLEGAL, "the messages of a batch must have the same topic")
        if message.wait_store_ok != first.wait_store_ok:
            raise MQError(ResponseCode.MESSAGE_ILLEGAL, "the messages of a batch must agree on wait_store_ok")
        if message.delayed:
            raise MQError(ResponseCode.MESSAGE_ILLEGAL, "a batch cannot be delayed")
        if message.unique_id is None:
            message.unique_id = next_id()
        ids.append(message.unique_id)
        properties = message.encoded_properties()
        items.append(BatchItem(body=bytes(message.body), properties=properties, flag=message.flag))
    body = encode_batch(items)
    if len(body) > max_size:
        raise MQError(
            ResponseCode.MESSAGE_ILLEGAL,
            f"the batch of {len(body)} bytes is over the limit of {max_size}: send fewer at once",
        )
    # Without a unique id, unlike RocketMQ's client: older brokers (5.3 for one) write the properties
    # of the batch behind those of each message, and all messages would have that id instead of theirs.
    # Without a sharding key for the same reason; it decides the queue all the same (`check_one_key`).
    return Message(first.topic, body, wait_store_ok=first.wait_store_ok), body, ",".join(ids)


def check_one_key(messages: Sequence[Message]) -> None:
    """For a batch whose sharding key decides the queue: raises `MQError` if the messages have several."""
    if any(message.sharding_key != messages[0].sharding_key for message in messages):
        raise MQError(
            ResponseCode.MESSAGE_ILLEGAL,
            "the messages of a batch must have the same sharding key, unless queue or selector decides",
        )
