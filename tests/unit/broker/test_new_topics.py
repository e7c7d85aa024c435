"""Messages for a topic that a send made are answered when it is known, and not where it never will be."""

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


class Told:
    def __init__(self, told: list[tuple[str, PutStatus, bool]], name: str) -> None:
        self._told, self._name, self.wait = told, name, True

    def stored(self, status: PutStatus, result: Any) -> None:
        self._told.append((self._name, status, result is not None))


class Rig:
    def __init__(self) -> None:
        self.known = asyncio.Event()
        self.error: Exception | None = None
        self.topics = NewTopics(self._keep)
        self.told: list[tuple[str, PutStatus, bool]] = []

    async def _keep(self) -> None:
        await self.known.wait()
        if self.error is not None:
            raise self.error

    def send(self, name: str, topic: str = "T") -> Any:
        return self.topics.hold(topic, Told(self.told, name))


async def test_answers_wait_and_keep_their_order() -> None:
    rig = Rig()
    rig.topics.created("T")
    first, second, late = rig.send("first"), rig.send("second"), rig.send("late")
    first.stored(OK, RESULT)
    second.stored(PutStatus.FLUSH_SLAVE_TIMEOUT, RESULT)
    await asyncio.sleep(0)
    assert not rig.told and rig.topics.held == 3
    rig.known.set()
    while rig.topics.pending:
        await asyncio.sleep(0)
    assert rig.told == [("first", OK, True), ("second", PutStatus.FLUSH_SLAVE_TIMEOUT, True)]
    late.stored(OK, RESULT)
    assert rig.told[2:] == [("late", OK, True)]
    assert rig.topics.held == 0


@pytest.mark.parametrize("stopped", [False, True])
async def test_what_is_abandoned_is_refused_also_what_is_stored_later(stopped: bool) -> None:
    rig = Rig()
    rig.topics.created("T")
    first, second, refused = rig.send("first"), rig.send("second"), rig.send("refused")
    first.stored(OK, RESULT)
    if stopped:
        await rig.topics.stop()
    else:
        rig.topics.abandon()
        rig.known.set()
        await asyncio.sleep(0)
    second.stored(OK, RESULT)
    refused.stored(PutStatus.MESSAGE_ILLEGAL, None)
    gone = PutStatus.SERVICE_NOT_AVAILABLE
    assert rig.told == [
        ("first", gone, False),
        ("second", gone, False),
        ("refused", PutStatus.MESSAGE_ILLEGAL, False),
    ]
    assert not rig.topics.pending and rig.topics.held == 0


async def test_made_again_while_the_former_one_is_waited_for() -> None:
    rig = Rig()
    rig.topics.created("T")
    former = rig.send("former")
    rig.topics.created("T")
    later = rig.send("later")
    former.stored(OK, RESULT)
    later.stored(OK, RESULT)
    rig.known.set()
    while rig.topics.pending:
        await asyncio.sleep(0)
    assert rig.told == [("former", OK, True), ("later", OK, True)]


async def test_a_disk_that_does_not_take_the_tables_is_a_line(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    rig.error = MQError(ResponseCode.SYSTEM_ERROR, "in force until a restart: No space left")
    rig.known.set()
    rig.topics.created("T")
    rig.send("first").stored(OK, RESULT)
    while rig.topics.pending:
        await asyncio.sleep(0)
    assert rig.told == [("first", OK, True)]
    assert caplog.messages == ["topic T: in force until a restart: No space left"]
