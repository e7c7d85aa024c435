"""The client for code without an event loop; see `batonmq.client.sync`."""

from __future__ import annotations

from batonmq.client.sync import (
    Consumer,
    Credentials,
    Message,
    MessageExt,
    MessageTrace,
    PopConsumer,
    Producer,
    QueueReader,
    RetryLater,
    SendResult,
    SimpleConsumer,
    TransactionProducer,
    TransactionState,
    sql,
)

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
