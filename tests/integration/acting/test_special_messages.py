"""The master of a broker set is killed: its slave goes on with what a master does in the background."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from tests.integration.acting.group import Pairs, until

Starter = Callable[..., Awaitable[Pairs]]


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Starter]:
    made: list[Pairs] = []

    async def go(sets: str = "ab", slaves: int = 1, **settings: object) -> Pairs:
        pairs = Pairs(tmp_path, settings, sets=sets, slaves=slaves)
        made.append(pairs)
        await pairs.up()
        return pairs

    yield go
    for pairs in made:
        await pairs.close()
        text = pairs.logs()
        assert "Traceback" not in text, text[text.index("Traceback") - 300 :][:3000]


async def placed(pairs: Pairs, bodies: list[str], *places: tuple[str, int], timeout_s: float = 20) -> None:
    """Until the brokers have all these messages; each once."""

    async def there() -> bool:
        return set(bodies) <= set(await pairs.bodies(*places))

    await until(there, f"{len(bodies)} messages come", timeout_s)
    counts = await pairs.bodies(*places)
    assert {body: counts[body] for body in bodies} == dict.fromkeys(bodies, 1)


async def test_delayed_messages_come_on_time_on_another_master(start: Starter) -> None:
    pairs = await start()
    delayed = await pairs.send("a", 10, delay_level=2)
    sent = time.monotonic()
    pairs.brokers["a", 0].kill()
    await pairs.acting("a")
    assert not (await pairs.bodies(("b", 0))).keys() & set(delayed)
    await placed(pairs, delayed, ("b", 0))
    assert 3.8 < time.monotonic() - sent < 6


async def test_timed_messages_come_on_time_on_another_master(start: Starter) -> None:
    pairs = await start()
    due = time.time() + 5
    timed = await pairs.send("a", 10, deliver_at=due)
    pairs.brokers["a", 0].kill()
    await pairs.acting("a")
    assert not (await pairs.bodies(("b", 0))).keys() & set(timed)
    await placed(pairs, timed, ("b", 0))
    assert -0.1 < time.time() - due < 2.5


async def test_without_another_master_they_wait_for_their_own(start: Starter) -> None:
    pairs = await start("a")
    delayed = await pairs.send("a", 10, delay_level=1)
    timed = await pairs.send("a", 10, deliver_at=time.time() + 2)
    pairs.brokers["a", 0].kill()
    await pairs.acting("a")
    await asyncio.sleep(4)
    assert not await pairs.bodies(("a", 1))
    await asyncio.to_thread(pairs.brokers["a", 0].start)
    await pairs.acting("a", ends=True)
    await placed(pairs, delayed + timed, ("a", 0))


async def test_the_acting_master_serves_reads_and_no_sends(start: Starter) -> None:
    pairs = await start()
    plain = await pairs.send("a", 10)
    pairs.brokers["a", 0].kill()
    await pairs.acting("a")
    assert set(await pairs.bodies(("a", 1))) == set(plain)
    (acting,) = [each for each in (await pairs.route()).broker_datas if each.broker_name == "a"]
    assert acting.broker_addrs == {0: pairs.address("a", 1)}
