"""Which calls of a queue's master are repeated after an error that may pass."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from batonmq.client.push.retries import SendBack
from batonmq.client.reader import QueueReader
from batonmq.protocol.bodies.common import MessageQueue
from batonmq.protocol.codes import RequestCode, ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.routing.session import Session

from .fakes import FakeCluster

QUEUE = MessageQueue("t", "a", 0)


async def test_a_message_that_goes_back_may_be_stored_and_is_not_sent_again() -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker("a")
        cluster.topic("t", a=1)
        asked: list[int] = []

        def answer(code: int) -> Exception | None:
            if code != RequestCode.CONSUMER_SEND_MSG_BACK:
                return None
            asked.append(code)
            return MQError(ResponseCode.SYSTEM_ERROR, "FLUSH_SLAVE_TIMEOUT")

        broker.answer = answer
        session = Session(cluster.namesrv)
        await session.name_servers.connect()
        message: Any = SimpleNamespace(physical_offset=0, message_id="x", topic="t")
        with pytest.raises(MQError, match="FLUSH_SLAVE_TIMEOUT"):
            await SendBack(session, "g", None)(QUEUE, message, 0)
        await session.close()
        assert len(asked) == 1


async def test_a_question_about_an_offset_is_asked_again() -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker("a")
        cluster.topic("t", a=1)
        refusals = [MQError(ResponseCode.SYSTEM_BUSY, "no role yet") for _ in range(3)]

        def answer(code: int) -> Exception | None:
            return refusals.pop() if code == RequestCode.GET_MAX_OFFSET and refusals else None

        broker.answer = answer
        async with QueueReader(cluster.namesrv) as reader:
            assert await reader.max_offset(QUEUE) == 0
        assert not refusals
