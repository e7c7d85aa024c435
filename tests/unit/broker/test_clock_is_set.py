"""The wall clock of a broker's machine is set while clients are connected."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.broker.conftest import START_MS, Served
from tests.unit.broker.fakes import FakeConnection, ask, json_of
from tests.unit.broker.test_handlers_client import heartbeat

from batonmq.broker.tables import part as tables_part
from batonmq.broker.tables.part import TablesPart
from batonmq.protocol.headers.broker.admin import GetAllProducerInfo
from batonmq.protocol.headers.broker.clients import Heartbeat


async def test_clients_are_not_silent_because_the_clock_is_set(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their connections would all be closed, and what is in flight on them would be sent twice."""
    monkeypatch.setattr(tables_part, "SAMPLE_INTERVAL_MS", 1)
    connection, tables = FakeConnection(), served.broker.tables
    await ask(served.dispatcher, Heartbeat(), heartbeat(), connection=connection)
    tables.broadcast.update("TopicJ", "GroupB", 0, 7, "c", False, served.clock.monotonic_ms())
    (part,) = (each for each in served.parts if isinstance(each, TablesPart))
    await part.start()
    try:
        for days in (1, -1):
            served.clock.set_wall(START_MS + days * 86_400_000)
            await asyncio.sleep(0.05)
            assert not connection.closed
            assert tables.producers.members("ProdJ") and tables.consumers.group("GroupJ")
            assert len(tables.broadcast) == 1
            served.clock.advance(1_000)
            info = json_of(await ask(served.dispatcher, GetAllProducerInfo()))["data"]["ProdJ"][0]
            assert info["lastUpdateTimestamp"] == served.clock.now_ms() - served.clock.monotonic_ms()
        served.clock.advance(served.broker.settings.broker.channel_expired_timeout)
        await asyncio.sleep(0.05)
        assert tables.producers.members("ProdJ") is None and tables.consumers.group("GroupJ") is None
    finally:
        await part.stop()
