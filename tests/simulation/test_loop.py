"""The simulator itself: virtual time, ordered delivery, partitions, crashes."""

from __future__ import annotations

import asyncio
import gc

import pytest

from tests.simulation.host import Host
from tests.simulation.loop import Deadlock, SimLoop


class Echo(asyncio.Protocol):
    def __init__(self) -> None:
        self.lost: list[object] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)  # type: ignore[attr-defined]

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(exc)


class Collect(asyncio.Protocol):
    def __init__(self) -> None:
        self.data = b""
        self.lost = False

    def data_received(self, data: bytes) -> None:
        self.data += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True


@pytest.fixture
def loop():
    loop = SimLoop(7)
    yield loop
    loop.close()


async def connected(loop: SimLoop) -> tuple[Host, Host, Collect, asyncio.Transport]:
    a, b = loop.network.start("a", "10.0.0.1"), loop.network.start("b", "10.0.0.2")
    await loop.network.run_on(a, lambda: loop.create_task(loop.create_server(Echo, "10.0.0.1", 80)))
    transport, protocol = await loop.network.run_on(
        b, lambda: loop.create_task(loop.create_connection(Collect, "10.0.0.1", 80))
    )
    return a, b, protocol, transport


def test_bytes_come_back_in_order_and_time_is_virtual(loop):
    async def main() -> bytes:
        _, _, protocol, transport = await connected(loop)
        for i in range(100):
            transport.write(b"%03d" % i)
        await asyncio.sleep(3_600)
        return protocol.data

    assert loop.run_until_complete(main()) == b"".join(b"%03d" % i for i in range(100))
    assert loop.now > 4_600


def test_a_cut_link_holds_bytes_until_it_heals(loop):
    async def main() -> tuple[bytes, bytes]:
        _, _, protocol, transport = await connected(loop)
        loop.network.cut("a", "b")
        transport.write(b"held")
        await asyncio.sleep(10)
        during = protocol.data
        loop.network.heal()
        await asyncio.sleep(1)
        return during, protocol.data

    assert loop.run_until_complete(main()) == (b"", b"held")


def test_a_crashed_host_runs_nothing_and_its_peers_lose_the_connection(loop):
    ran: list[str] = []

    async def ticking() -> None:
        while True:
            await asyncio.sleep(1)
            ran.append("tick")

    async def main() -> bool:
        a, _, protocol, _ = await connected(loop)
        loop.network.run_on(a, lambda: loop.create_task(ticking()))
        await asyncio.sleep(3.5)
        loop.network.crash(a)
        await asyncio.sleep(10)
        return protocol.lost

    assert loop.run_until_complete(main())
    assert len(ran) == 3


def test_a_machine_that_lost_its_power_resets_old_connections_when_it_is_up_again(loop):
    async def main() -> tuple[bool, bool]:
        a, _, protocol, transport = await connected(loop)
        loop.network.crash(a, silent=True)
        transport.write(b"into the dark")
        await asyncio.sleep(10)
        while_down = protocol.lost
        loop.network.start("a", "10.0.0.1")
        transport.write(b"anybody?")
        await asyncio.sleep(1)
        return while_down, protocol.lost

    assert loop.run_until_complete(main()) == (False, True)


def test_one_connection_is_reset_or_stalled_and_others_are_not(loop):
    async def main() -> tuple[bool, bytes, bytes, bool]:
        _, b, protocol, transport = await connected(loop)
        other, echoed = await loop.network.run_on(
            b, lambda: loop.create_task(loop.create_connection(Collect, "10.0.0.1", 80))
        )
        loop.network.stall(transport, 5)
        transport.write(b"late")
        other.write(b"at once")
        await asyncio.sleep(4)
        during = protocol.data
        await asyncio.sleep(4)
        after = protocol.data
        loop.network.reset(transport)
        await asyncio.sleep(1)
        return protocol.lost, during, after, echoed.lost

    assert loop.run_until_complete(main()) == (True, b"", b"late", False)


def test_tasks_that_never_end_are_closed_without_a_word(loop, capsys):
    async def stubborn() -> None:
        try:
            await asyncio.sleep(1e9)
        finally:
            await asyncio.sleep(1)

    async def main() -> None:
        a = loop.network.start("a", "10.0.0.1")
        loop.network.run_on(a, lambda: loop.create_task(stubborn()))
        await asyncio.sleep(1)
        loop.network.crash(a)

    loop.run_until_complete(main())
    loop.dispose()
    gc.collect()
    assert "GeneratorExit" not in capsys.readouterr().err


def test_a_paused_host_continues_where_it_stopped(loop):
    ran: list[float] = []

    async def ticking() -> None:
        while True:
            await asyncio.sleep(1)
            ran.append(loop.now)

    async def main() -> None:
        a = loop.network.start("a", "10.0.0.1")
        loop.network.run_on(a, lambda: loop.create_task(ticking()))
        await asyncio.sleep(2.5)
        a.paused_until = loop.now + 20
        await asyncio.sleep(19)
        assert len(ran) == 2
        await asyncio.sleep(3)
        a.alive = False

    loop.run_until_complete(main())
    assert len(ran) > 2


def test_what_a_paused_host_would_have_cancelled_in_time_does_not_run(loop):
    ran: list[str] = []

    def cancel(timer: asyncio.TimerHandle) -> None:
        timer.cancel()
        ran.append("cancelled")

    async def main() -> None:
        a = loop.network.start("a", "10.0.0.1")

        def plan() -> None:
            timer = loop.call_later(2, ran.append, "too late")
            loop.call_later(1, cancel, timer)

        loop.network.run_on(a, plan)
        a.paused_until = loop.now + 5
        await asyncio.sleep(10)

    loop.run_until_complete(main())
    assert ran == ["cancelled"]


def test_waiting_for_nothing_is_reported(loop):
    with pytest.raises(Deadlock):
        loop.run_until_complete(loop.create_future())
