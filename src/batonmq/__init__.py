"""BatonMQ: a highly available message queue, compatible with Apache RocketMQ 5.

The names below are the client for users; `batonmq.sync` is the same for code without an event loop. They are
loaded when first used, so that the servers do not pay for them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from batonmq._compiled import COMPILED as COMPILED

if TYPE_CHECKING:
    from batonmq import sync
    from batonmq.client.admin import Admin
    from batonmq.client.consumer import Consumer
    from batonmq.client.errors import ClientError, NotSafelyStored, SendFailed
    from batonmq.client.message import Message, SendResult, SendStatus
    from batonmq.client.producer import Producer
    from batonmq.client.push.retries import RetryLater
    from batonmq.client.reader import Pulled, QueueReader
    from batonmq.net.errors import NetError
    from batonmq.protocol.bodies.clients import ConsumeFromWhere, MessageModel
    from batonmq.protocol.bodies.common import MessageQueue
    from batonmq.protocol.compression import CompressionType
    from batonmq.protocol.errors import MQError, TopicNotExistError
    from batonmq.protocol.message.record import MessageExt
    from batonmq.routing.name_servers import NoNameServer

_HOMES = {
    "Admin": "batonmq.client.admin",
    "ClientError": "batonmq.client.errors",
    "CompressionType": "batonmq.protocol.compression",
    "ConsumeFromWhere": "batonmq.protocol.bodies.clients",
    "Consumer": "batonmq.client.consumer",
    "MQError": "batonmq.protocol.errors",
    "Message": "batonmq.client.message",
    "MessageExt": "batonmq.protocol.message.record",
    "MessageModel": "batonmq.protocol.bodies.clients",
    "MessageQueue": "batonmq.protocol.bodies.common",
    "NetError": "batonmq.net.errors",
    "NoNameServer": "batonmq.routing.name_servers",
    "NotSafelyStored": "batonmq.client.errors",
    "Producer": "batonmq.client.producer",
    "Pulled": "batonmq.client.reader",
    "QueueReader": "batonmq.client.reader",
    "RetryLater": "batonmq.client.consumer",
    "SendFailed": "batonmq.client.errors",
    "SendResult": "batonmq.client.message",
    "SendStatus": "batonmq.client.message",
    "TopicNotExistError": "batonmq.protocol.errors",
}

__all__ = [
    "Admin",
    "ClientError",
    "CompressionType",
    "ConsumeFromWhere",
    "Consumer",
    "MQError",
    "Message",
    "MessageExt",
    "MessageModel",
    "MessageQueue",
    "NetError",
    "NoNameServer",
    "NotSafelyStored",
    "Producer",
    "Pulled",
    "QueueReader",
    "RetryLater",
    "SendFailed",
    "SendResult",
    "SendStatus",
    "TopicNotExistError",
    "sync",
]


def __getattr__(name: str) -> Any:
    if name == "sync":
        return importlib.import_module("batonmq.sync")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)
