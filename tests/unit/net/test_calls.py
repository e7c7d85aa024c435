"""The table of calls in flight: identifiers and deadlines, on a loop whose time stands still."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from tests.simulation.loop import SimLoop

from batonmq.net.calls import OPAQUE_MAX, Calls
from batonmq.net.errors import CallTimeout, ConnectionLost
from batonmq.protocol.frame import Command


@pytest.fixture
def loop() -> Iterator[SimLoop]:
    made = SimLoop(1)
    yield made
    made.close()


def test_identifiers_wrap_and_skip_those_in_use(loop: SimLoop) -> None:
    calls = Calls(loop, "a:1")
    assert [calls.next_opaque() for _ in range(3)] == [1, 2, 3]
    calls.expect(1, 1.0)
    calls.expect(2, 1.0)
    calls._last_opaque = OPAQUE_MAX - 1
    assert [calls.next_opaque() for _ in range(2)] == [OPAQUE_MAX, 3]
    calls.fail_all(ConnectionLost("a:1", "end"))


def test_each_call_ends_at_its_own_deadline_with_few_timers(loop: SimLoop) -> None:
    calls = Calls(loop, "a:1")
    ended: dict[int, float] = {}
    timers = 0
    plain_call_at = loop.call_at

    def counting_call_at(*args: object, **more: object) -> asyncio.TimerHandle:
        nonlocal timers
        timers += 1
        return plain_call_at(*args, **more)

    loop.call_at = counting_call_at

    async def main() -> None:
        started = loop.time()

        async def wait(opaque: int, timeout_s: float) -> None:
            with pytest.raises(CallTimeout, match="a:1"):
                await calls.expect(opaque, timeout_s)
            ended[opaque] = loop.time() - started

        await asyncio.gather(*(wait(n, 3.0) for n in range(100)), wait(200, 0.5), wait(201, 10.0))

    loop.run_until_complete(main())
    assert all(ended[n] == pytest.approx(3.0, abs=0.02) for n in range(100))
    assert ended[200] == pytest.approx(0.5, abs=0.02) and ended[201] == pytest.approx(10.0, abs=0.02)
    assert timers <= 5 and len(calls) == 0


def test_an_answer_that_nobody_waits_for_is_distinguished_from_one_that_is_awaited(loop: SimLoop) -> None:
    calls = Calls(loop, "a:1")
    future = calls.expect(7, 1.0)
    assert not calls.complete(Command(0, opaque=8))
    assert calls.complete(Command(0, opaque=7)) and future.result().opaque == 7
    assert not calls.complete(Command(0, opaque=7))
    calls.fail_all(ConnectionLost("a:1", "end"))


def test_a_lost_connection_ends_all_calls(loop: SimLoop) -> None:
    calls = Calls(loop, "a:1")
    futures = [calls.expect(n, 1.0) for n in range(3)]
    futures[0].cancel()
    calls.fail_all(ConnectionLost("a:1", "gone"))
    assert len(calls) == 0 and all(isinstance(each.exception(), ConnectionLost) for each in futures[1:])
