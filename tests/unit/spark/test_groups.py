"""Which topics a group has consumed, also as RocketMQ's brokers before 5.0 tell it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from batonmq.protocol.bodies.common import MessageQueue, TopicList
from batonmq.protocol.bodies.statistics import ConsumeStats, OffsetWrapper
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.admin import GetConsumeStats, QueryTopicsByConsumer
from batonmq.protocol.json import encode
from batonmq.spark.jobs.groups import consumed_topics

AT = OffsetWrapper(broker_offset=9, consumer_offset=3, last_timestamp=0)
STATS = ConsumeStats({MessageQueue("two", "b", 0): AT, MessageQueue("two", "b", 1): AT})


class Brokers:
    """``new`` has consumed topic ``one``; ``old`` is RocketMQ 4.9."""

    def __init__(self) -> None:
        self.net = self

    async def call(self, address: str, header: Any) -> Any:
        if address == "new" and isinstance(header, QueryTopicsByConsumer):
            return SimpleNamespace(body=encode(TopicList(["one"])))
        if address == "old" and header == GetConsumeStats(consumer_group="g"):
            return SimpleNamespace(body=encode(STATS))
        code = ResponseCode.REQUEST_CODE_NOT_SUPPORTED if address == "old" else ResponseCode.NO_PERMISSION
        raise MQError(code, "no")


def test_brokers_old_and_new_are_asked() -> None:
    session: Any = Brokers()
    assert asyncio.run(consumed_topics(session, ["new", "old"], "g")) == {"one", "two"}
    with pytest.raises(MQError):
        asyncio.run(consumed_topics(session, ["new", "forbidden"], "g"))
