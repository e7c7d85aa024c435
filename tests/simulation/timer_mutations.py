"""Does the simulation notice? ``python -m tests.simulation.timer_mutations`` takes guards out of timers."""

from __future__ import annotations

from collections.abc import Callable

from batonmq.broker.timer import redirect
from batonmq.broker.timer.service import TimerService
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


MUTATIONS: dict[str, Mutation[Callable[[int], Shape]]] = {
    "early": Mutation("a message is put one slot before its time", _early),
    "forget-what-waits": Mutation("a new master begins with what is due now", _forget_what_waits),
}


def violation(name: str, seed: int) -> str | None:
    """What the story of `seed` says without the guard; None if it does not notice."""
    mutation = MUTATIONS[name]
    shape = (mutation.shape or shape_of)(seed)
    return mutation.violation(lambda: run_timers(seed, shape))


if __name__ == "__main__":
    counting(MUTATIONS, violation, seeds=20)()
