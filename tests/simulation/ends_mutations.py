"""Guards of the ends of queues, taken out one at a time (`mutation.py`):
``python -m tests.simulation.ends_mutations``."""

from __future__ import annotations

from collections.abc import Callable

from batonmq.broker.tables.handlers.offsets import _OffsetHandlers
from batonmq.client.reader import QueueReader
from batonmq.net.dispatch import Outcome, Reply
from batonmq.protocol.bodies.common import MessageQueue
from tests.simulation.ends import run_ends
from tests.simulation.mutation import Mutation, Patch, counting
from tests.simulation.story import Shape, shape_of


def _without_role() -> list[Patch]:
    def once_visible(self: _OffsetHandlers, answer: Callable[[], Reply]) -> Outcome:
        return self._answer_later(answer) if self._hidden else answer()

    return [(_OffsetHandlers, "_once_visible", once_visible)]


def _any_end() -> list[Patch]:
    async def max_offset(self: QueueReader, queue: MessageQueue) -> int:
        return await self._max_offset(queue)

    return [(QueueReader, "max_offset", max_offset)]


MUTATIONS: dict[str, Mutation[Shape]] = {
    "without-role": Mutation("a broker without a role answers", _without_role),
    "any-end": Mutation("a reader believes a former master", _any_end),
}


def violation(name: str, seed: int) -> str | None:
    """What the story of `seed` says with this guard taken out; None if it does not notice."""
    mutation = MUTATIONS[name]
    return mutation.violation(lambda: run_ends(seed, mutation.shape or shape_of(seed)))


main = counting(MUTATIONS, violation, seeds=24)

if __name__ == "__main__":
    main()
