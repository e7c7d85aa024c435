"""Messages of a topic that a send created are acknowledged once the topic is durable, else refused."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from batonmq.broker.messages.appender import PutStatus
from batonmq.broker.messages.new_topics import NewTopics
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError

RESULT: Any = object()
OK = PutStatus.PUT_OK


class RecordingWaiter:
    def __init__(self, outcomes: list[tuple[str, PutStatus, bool]], name: str) -> None:
        self._outcomes, self._name, self.wait = outcomes, name, True

    def stored(self, status: PutStatus, result: Any) -> None:
        self._outcomes.append((self._name, status, result is not None))


class Rig:
    def __init__(self) -> None:
        self.durable = asyncio.Event()
        self.error: Exception | None = None
        self.topics = NewTopics(self._wait)
        self.outcomes: list[tuple[str, PutStatus, bool]] = []

    async def _wait(self) -> None:
        await self.durable.wait()
        if self.error is not None:
            raise self.error

    def send(self, name: str, topic: str = "T") -> Any:
        return self.topics.hold(topic, RecordingWaiter(self.outcomes, name))


async def test_answers_wait_and_keep_their_order() -> None:
    rig = Rig()
    rig.topics.created("T")
    first, second, late = rig.send("first"), rig.send("second"), rig.send("late")
    first.stored(OK, RESULT)
    second.stored(PutStatus.FLUSH_SLAVE_TIMEOUT, RESULT)
    await asyncio.sleep(0)
    assert not rig.outcomes and rig.topics.held == 3
    rig.durable.set()
    while rig.topics.pending:
        await asyncio.sleep(0)
    assert rig.outcomes == [("first", OK, True), ("second", PutStatus.FLUSH_SLAVE_TIMEOUT, True)]
    late.stored(OK, RESULT)
    assert rig.outcomes[2:] == [("late", OK, True)]
    assert rig.topics.held == 0


@pytest.mark.parametrize("stopped", [False, True])
async def test_abandoned_messages_are_refused_even_if_stored_later(stopped: bool) -> None:
    rig = Rig()
    rig.topics.created("T")
    first, second, refused = rig.send("first"), rig.send("second"), rig.send("refused")
    first.stored(OK, RESULT)
    if stopped:
        await rig.topics.stop()
    else:
        rig.topics.abandon()
        rig.durable.set()
        await asyncio.sleep(0)
    second.stored(OK, RESULT)
    refused.stored(PutStatus.MESSAGE_ILLEGAL, None)
    gone = PutStatus.SERVICE_NOT_AVAILABLE
    assert rig.outcomes == [
        ("first", gone, False),
        ("second", gone, False),
        ("refused", PutStatus.MESSAGE_ILLEGAL, False),
    ]
    assert not rig.topics.pending and rig.topics.held == 0


async def test_a_topic_created_again_while_the_first_one_is_pending() -> None:
    rig = Rig()
    rig.topics.created("T")
    former = rig.send("former")
    rig.topics.created("T")
    later = rig.send("later")
    former.stored(OK, RESULT)
    later.stored(OK, RESULT)
    rig.durable.set()
    while rig.topics.pending:
        await asyncio.sleep(0)
    assert rig.outcomes == [("former", OK, True), ("later", OK, True)]


async def test_a_failed_write_of_the_tables_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    rig.error = MQError(ResponseCode.SYSTEM_ERROR, "in force until a restart: No space left")
    rig.durable.set()
    rig.topics.created("T")
    rig.send("first").stored(OK, RESULT)
    while rig.topics.pending:
        await asyncio.sleep(0)
    assert rig.outcomes == [("first", OK, True)]
    assert caplog.messages == ["topic T: in force until a restart: No space left"]
