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
    from batonmq.client.errors import (
        ClientError,
        NotSafelyStored,
        ReplyTimeout,
        SendFailed,
        TransactionUnconfirmed,
    )
    from batonmq.client.filter import sql
    from batonmq.client.hooks import Hook, TransactionState
    from batonmq.client.message import Message, SendResult, SendStatus
    from batonmq.client.message_trace import MessageTrace
    from batonmq.client.pop_consumer import PopConsumer
    from batonmq.client.producer import Producer
    from batonmq.client.push.retries import RetryLater
    from batonmq.client.reader import Pulled, QueueReader
    from batonmq.client.simple_consumer import SimpleConsumer
    from batonmq.client.transactions import TransactionProducer
    from batonmq.net.errors import NetError
    from batonmq.protocol.bodies.clients import ConsumeFromWhere, MessageModel
    from batonmq.protocol.bodies.common import MessageQueue
    from batonmq.protocol.compression import CompressionType
    from batonmq.protocol.errors import MQError, TopicNotExistError
    from batonmq.protocol.message.record import MessageExt
    from batonmq.protocol.signing import Credentials
    from batonmq.routing.name_servers import NoNameServer

_HOMES = {
    "Admin": "batonmq.client.admin",
    "ClientError": "batonmq.client.errors",
    "CompressionType": "batonmq.protocol.compression",
    "ConsumeFromWhere": "batonmq.protocol.bodies.clients",
    "Consumer": "batonmq.client.consumer",
    "Credentials": "batonmq.protocol.signing",
    "Hook": "batonmq.client.hooks",
    "MQError": "batonmq.protocol.errors",
    "Message": "batonmq.client.message",
    "MessageExt": "batonmq.protocol.message.record",
    "MessageModel": "batonmq.protocol.bodies.clients",
    "MessageQueue": "batonmq.protocol.bodies.common",
    "MessageTrace": "batonmq.client.message_trace",
    "NetError": "batonmq.net.errors",
    "NoNameServer": "batonmq.routing.name_servers",
    "NotSafelyStored": "batonmq.client.errors",
    "PopConsumer": "batonmq.client.pop_consumer",
    "Producer": "batonmq.client.producer",
    "Pulled": "batonmq.client.reader",
    "QueueReader": "batonmq.client.reader",
    "ReplyTimeout": "batonmq.client.errors",
    "RetryLater": "batonmq.client.consumer",
    "SendFailed": "batonmq.client.errors",
    "SendResult": "batonmq.client.message",
    "SendStatus": "batonmq.client.message",
    "SimpleConsumer": "batonmq.client.simple_consumer",
    "TopicNotExistError": "batonmq.protocol.errors",
    "TransactionProducer": "batonmq.client.transactions",
    "TransactionState": "batonmq.client.hooks",
    "TransactionUnconfirmed": "batonmq.client.errors",
    "sql": "batonmq.client.filter",
}

__all__ = [
    "Admin",
    "ClientError",
    "CompressionType",
    "ConsumeFromWhere",
    "Consumer",
    "Credentials",
    "Hook",
    "MQError",
    "Message",
    "MessageExt",
    "MessageModel",
    "MessageQueue",
    "MessageTrace",
    "NetError",
    "NoNameServer",
    "NotSafelyStored",
    "PopConsumer",
    "Producer",
    "Pulled",
    "QueueReader",
    "ReplyTimeout",
    "RetryLater",
    "SendFailed",
    "SendResult",
    "SendStatus",
    "SimpleConsumer",
    "TopicNotExistError",
    "TransactionProducer",
    "TransactionState",
    "TransactionUnconfirmed",
    "sql",
    "sync",
]


def __getattr__(name: str) -> Any:
    if name == "sync":
        return importlib.import_module("batonmq.sync")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)
