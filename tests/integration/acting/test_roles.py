"""Which slave acts, and for how long: several slaves, a restarted name server, a master that hangs."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from tests.integration.acting.group import Pairs, until

from batonmq.protocol.headers.broker.admin import UpdateBrokerConfig

Starter = Callable[..., Awaitable[Pairs]]


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Starter]:
    made: list[Pairs] = []

    async def go(sets: str = "a", slaves: int = 1, **settings: object) -> Pairs:
        pairs = Pairs(tmp_path, settings, sets=sets, slaves=slaves)
        made.append(pairs)
        await pairs.up()
        return pairs

    yield go
    for pairs in made:
        await pairs.close()
        text = pairs.logs()
        assert "Traceback" not in text, text[text.index("Traceback") - 300 :][:3000]


async def test_the_living_slave_with_the_lowest_id_acts(start: Starter) -> None:
    pairs = await start(slaves=2)
    pairs.kill("a", 0)
    assert await pairs.acting("a", 1) < 2
    assert not pairs.acts("a", 2)
    pairs.kill("a", 1)
    assert await pairs.acting("a", 2) < 2
    await pairs.restart("a", 1)
    await pairs.acting("a", 1)
    assert await pairs.acting("a", 2, ends=True) < 2
    await pairs.restart("a", 0)
    assert await pairs.acting("a", 1, ends=True) < 10
    await pairs.whole("a")
    assert not pairs.acts("a", 2)


async def test_a_master_that_stops_hands_over_at_once(start: Starter) -> None:
    pairs = await start()
    stopping = asyncio.create_task(asyncio.to_thread(pairs.brokers["a", 0].stop))
    assert await pairs.acting("a") < 2
    await stopping


async def test_a_restarted_name_server_makes_no_slave_act(start: Starter) -> None:
    pairs = await start()
    for _ in range(3):
        await asyncio.to_thread(pairs.namesrv.kill)
        await asyncio.sleep(0.5)
        await asyncio.to_thread(pairs.namesrv.start)

        async def known() -> bool:
            return len(await pairs.members("a")) == 2

        await until(known, "both are registered again")
        await asyncio.sleep(1)
    assert "acting as master with" not in pairs.log("a", 1)


async def test_a_slave_acts_while_its_master_hangs(start: Starter) -> None:
    pairs = await start(brokerNotActiveTimeoutMillis=2_000)
    master = pairs.brokers["a", 0]
    master.signal(signal.SIGSTOP)
    assert await pairs.acting("a") < 4
    master.signal(signal.SIGCONT)
    assert await pairs.acting("a", ends=True) < 4
    await pairs.whole("a")
    assert len(await pairs.send("a", 3)) == 3


async def test_a_switch_of_the_key_ends_the_role(start: Starter) -> None:
    """`enableSlaveActingMaster` can be changed while the brokers run."""
    pairs = await start()
    pairs.kill("a", 0)
    await pairs.acting("a")
    await pairs.client.call(pairs.address("a", 1), UpdateBrokerConfig(), b"enableSlaveActingMaster=false\n")
    assert await pairs.acting("a", ends=True) < 2
    await pairs.client.call(pairs.address("a", 1), UpdateBrokerConfig(), b"enableSlaveActingMaster=true\n")
    assert await pairs.acting("a") < 3
