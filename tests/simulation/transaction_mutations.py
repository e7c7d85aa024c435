"""Guards of transactions, taken out one at a time (`mutation.py`):
``python -m tests.simulation.transaction_mutations``."""

from __future__ import annotations

import re
from typing import Any

from batonmq.broker.transaction import core
from batonmq.broker.transaction.checker import Checker
from batonmq.broker.transaction.core import State
from batonmq.broker.transaction.recovery import Recovery
from batonmq.broker.transaction.term import Term
from tests.simulation.mutation import Mutation, Patch, counting
from tests.simulation.story import Shape, shape_of
from tests.simulation.transactions import run_transactions


def _unconfirmed() -> list[Patch]:
    return [(core, "_UNSAFE_BYTE", re.compile(rb"[\x00-\xf8]", re.DOTALL))]


def _no_search() -> list[Patch]:
    async def find_commits(self: Recovery) -> int:
        return 0

    return [(Recovery, "_find_commits", find_commits)]


def _early_checks() -> list[Patch]:
    async def run(self: Recovery) -> None:
        self._term.window = core.HalfWindow(
            self._stored_offset("RMQ_SYS_TRANS_HALF_TOPIC"),
            self._stored_offset("RMQ_SYS_TRANS_OP_HALF_TOPIC"),
        )
        self._term.ready.set_result(None)

    return [(Recovery, "run", run)]


def _no_checks() -> list[Patch]:
    async def round_(self: Checker) -> None:
        self._term.read_ops()
        self._term.store_offsets()

    return [(Checker, "round", round_)]


def _repeats() -> list[Patch]:
    def decide(self: Term, record: Any, state: State) -> None:
        self.window.set(record.queue_offset, 0)
        self.ops.add(record.queue_offset)

    return [(Term, "decide", decide)]


MUTATIONS: dict[str, Mutation[Shape]] = {
    "unconfirmed": Mutation(
        "the offset moves before the op message is confirmed",
        _unconfirmed,
        Shape(replicas=2, plot="stalled", faults_s=60.0),
    ),
    "no-search": Mutation("a new master does not look for commits in the log", _no_search),
    "early-checks": Mutation("a new master checks before it knows earlier decisions", _early_checks),
    "no-checks": Mutation("nobody is asked", _no_checks),
    "repeats": Mutation("what was decided in this term is not remembered", _repeats),
}


def violation(name: str, seed: int) -> str | None:
    """What the story of `seed` says with this guard taken out; None if it does not notice."""
    mutation = MUTATIONS[name]
    return mutation.violation(lambda: run_transactions(seed, mutation.shape or shape_of(seed)))


main = counting(MUTATIONS, violation, seeds=16)

if __name__ == "__main__":
    main()
