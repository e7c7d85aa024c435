"""The client for code without an event loop; see `batonmq.client.sync`."""

from batonmq.client.message import Message, SendResult
from batonmq.client.push.retries import RetryLater
from batonmq.client.sync import Consumer, Producer, QueueReader
from batonmq.protocol.message.record import MessageExt

__all__ = ["Consumer", "Message", "MessageExt", "Producer", "QueueReader", "RetryLater", "SendResult"]
