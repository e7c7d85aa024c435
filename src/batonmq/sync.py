"""The client for code without an event loop; see `batonmq.client.sync`."""

from batonmq.client.sync import (
    Consumer,
    Message,
    MessageExt,
    Producer,
    QueueReader,
    RetryLater,
    SendResult,
)

__all__ = ["Consumer", "Message", "MessageExt", "Producer", "QueueReader", "RetryLater", "SendResult"]
