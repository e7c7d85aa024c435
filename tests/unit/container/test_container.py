"""`Container` with a place that starts brokers when the test says so."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from batonmq.container.broker_file import BrokerFile, read_broker_file
from batonmq.container.container import Container
from batonmq.container.core import BrokerIdentity, BrokerTable, Entry
from batonmq.container.place import StartFailed
from batonmq.protocol.errors import MQError

A = BrokerIdentity("DefaultCluster", "a", 0)


class Place:
    """Starts wait for the test; what runs is known."""

    def __init__(self) -> None:
        self.starts: list[asyncio.Future[None]] = []
        self.running: set[BrokerIdentity] = set()

    async def open(self) -> None: ...

    async def start(self, file: BrokerFile) -> None:
        wait: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.starts.append(wait)
        await wait
        self.running.add(file.identity)

    async def stop(self, identity: BrokerIdentity) -> None:
        self.running.discard(identity)

    async def set_name_servers(self, addresses: str) -> None: ...

    async def close(self) -> None: ...


@pytest.fixture
def path(tmp_path: Path) -> str:
    path = tmp_path / "a.conf"
    path.write_text(f"brokerName=a\nlistenPort=20000\nstorePathRootDir={tmp_path}/a\n")
    return str(path)


async def opened() -> tuple[Container, Place]:
    place = Place()
    container = Container(BrokerTable(), "")
    await container.open([place])
    return container, place


async def until_starts(place: Place, count: int) -> None:
    while len(place.starts) < count:
        await asyncio.sleep(0.001)


async def test_a_broker_whose_first_start_failed_can_be_removed_during_the_second(path: str) -> None:
    """The second start begins in the moment in which the first one leaves the table."""
    container, place = await opened()
    first = asyncio.create_task(container.add(path))
    await until_starts(place, 1)
    early = asyncio.create_task(container.remove(A))
    await asyncio.sleep(0)
    leave = container.table.leave
    second: list[asyncio.Task[None]] = []

    def leave_and_start_again(entry: Entry) -> None:
        leave(entry)
        if not second:
            second.append(container._begin(read_broker_file(Path(path), "")))

    container.table.leave = leave_and_start_again  # type: ignore[method-assign]
    place.starts[0].set_exception(StartFailed("no"))
    with pytest.raises(MQError):
        await first
    await until_starts(place, 2)
    late = asyncio.create_task(container.remove(A))
    await asyncio.sleep(0.01)
    assert not early.done() and not late.done(), "both wait for the second start"
    place.starts[1].set_result(None)
    outcomes = await asyncio.gather(early, late, return_exceptions=True)
    assert sum(outcome is None for outcome in outcomes) == 1, outcomes
    assert not place.running and not len(container.table)
