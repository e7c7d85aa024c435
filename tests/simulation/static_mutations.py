"""Guards of static topics, taken out one at a time (`mutation.py`):
``python -m tests.simulation.static_mutations``."""

from __future__ import annotations

from batonmq.broker.messages.appender import Appender
from batonmq.broker.tables.watch import TableWatch
from tests.simulation.mutation import Mutation, Patch, counting
from tests.simulation.statics import run


def _without_slaves() -> list[Patch]:
    async def lacking(self: TableWatch[object], goal: int, timeout_s: float) -> set[int]:
        return set()

    return [(TableWatch, "lacking", lacking)]


def _at_once() -> list[Patch]:
    async def settle(self: Appender, timeout_ms: int) -> bool:
        return True

    return [(Appender, "settle", settle)]


MUTATIONS: dict[str, Mutation[None]] = {
    "without-slaves": Mutation("a mapping is answered before slaves have it", _without_slaves),
    "at-once": Mutation("a part ends before its last messages are visible", _at_once),
}
NOTICED = {"without-slaves": (0, 1, 5), "at-once": (35, 43)}
"""Seeds that notice. When the timing of brokers changes, others of the first `WITHIN_SEEDS` do: one in thirty
notices `at-once`."""
WITHIN_SEEDS = 90


def violation(name: str, seed: int) -> str | None:
    """What the story of `seed` says with this guard taken out; None if it does not notice."""
    return MUTATIONS[name].violation(lambda: run(seed))


main = counting(MUTATIONS, violation, seeds=20)

if __name__ == "__main__":
    main()
