"""Does the simulation notice? ``python -m tests.simulation.timer_mutations`` takes guards out of timers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from batonmq.broker.timer import redirect
from batonmq.broker.timer.deliverer import Deliverer
from batonmq.broker.timer.service import TimerService
from batonmq.broker.timer.timer_store import TimerStore
from tests.simulation.mutation import Mutation, Patch, counting
from tests.simulation.story import Shape, shape_of
from tests.simulation.timers import run_timers


def _early() -> list[Patch]:
    def slot_of(deliver_ms: int, precision_ms: int) -> int:
        return deliver_ms - deliver_ms % precision_ms - precision_ms

    return [(redirect, "slot_of", slot_of)]


def _forget_what_waits() -> list[Patch]:
    original = TimerService.lead

    def lead(self: TimerService) -> None:
        if self.state.opened and not self.state.leading:
            self.state.timers.forget_before(self.state.now_ms())
        original(self)

    return [(TimerService, "lead", lead)]


def _leave_at_once() -> list[Patch]:
    async def settle(self: Deliverer, flying: list[Any]) -> None:
        await asyncio.sleep(0)

    return [(Deliverer, "_settle", settle)]


def _give_up() -> list[Patch]:
    async def settle(self: Deliverer, flying: list[Any]) -> None:
        await asyncio.gather(*[each.outcome for each in flying])

    return [(Deliverer, "_settle", settle)]


def _trust_the_wheel() -> list[Patch]:
    def recover(self: TimerStore, checkpoint: Any, max_physical: int) -> dict[int, int]:
        self.log.find_end(max_physical)
        self.wheel.forget_before(checkpoint.read_ms)
        self.count_again()
        return {}

    return [(TimerStore, "recover", recover)]


def _plot(plot: str, *, sync_flush: bool = False) -> Callable[[int], Shape]:
    """Stories of one plot again and again."""
    return lambda seed: Shape(replicas=2, sync_flush=sync_flush, plot=plot, faults_s=15.0)


MUTATIONS: dict[str, Mutation[Callable[[int], Shape]]] = {
    "early": Mutation("a message is put one slot before its time", _early),
    "forget-what-waits": Mutation("a new master begins with what is due now", _forget_what_waits),
    "leave-at-once": Mutation(
        "a slot is left before its messages are acknowledged", _leave_at_once, _plot("full")
    ),
    "give-up": Mutation(
        "messages that are refused are given up", _give_up, _plot("full"), upstream="timers dropped after 3"
    ),
    "trust-the-wheel": Mutation(
        "a restart takes the wheel as it is on disk",
        _trust_the_wheel,
        _plot("blackout", sync_flush=True),
        upstream="#9735",
    ),
}


def violation(name: str, seed: int) -> str | None:
    """What the story of `seed` says without the guard; None if it does not notice."""
    mutation = MUTATIONS[name]
    shape = (mutation.shape or shape_of)(seed)
    return mutation.violation(lambda: run_timers(seed, shape))


if __name__ == "__main__":
    counting(MUTATIONS, violation, seeds=20)()
