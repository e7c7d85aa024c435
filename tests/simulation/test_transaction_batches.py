"""Whole clusters with batches as half messages under seeded faults (`transaction_batches.py`)."""

from __future__ import annotations

from typing import Any

import pytest

from batonmq.broker.transaction.ending import TransactionEnds
from batonmq.broker.transaction.recovery import Recovery
from tests.simulation.mutation import Mutation
from tests.simulation.story import Shape, shape_of
from tests.simulation.transaction_batches import run_batches

SEEDS = [*range(6), 8]
"""8: a power cut left a hole in the index, and a repeated commit delivered a message again."""
WITHIN_SEEDS = 60
"""Seeds tried before a mutation counts as unnoticed."""
NOTICED = {"no-rest": (17, 43)}
"""Seeds that are tried first, since few notice."""


async def _no_rest(self: Recovery, rows: Any) -> None:
    return


MUTATIONS: dict[str, Mutation[Shape]] = {
    "no-rest": Mutation(
        "a new master does not complete a batch", lambda: [(Recovery, "_deliver_rest", _no_rest)]
    ),
    "no-index": Mutation(
        "a master does not ask the index what earlier ones delivered",
        lambda: [(TransactionEnds, "_was_delivered", lambda *_: False)],
    ),
}


@pytest.mark.simulation
@pytest.mark.parametrize("seed", SEEDS)
def test_batches_end_as_their_producer_decides(seed):
    story, scenario = run_batches(seed, shape_of(seed))
    assert story.masters
    assert sum(transaction.read for transaction in scenario.transactions.values()) > 20


@pytest.mark.simulation
@pytest.mark.parametrize("name", MUTATIONS)
def test_a_missing_guard_is_noticed(name):
    mutation = MUTATIONS[name]
    assert any(
        mutation.violation(lambda seed=seed: run_batches(seed, shape_of(seed)))
        for seed in (*NOTICED.get(name, ()), *range(WITHIN_SEEDS))
    ), mutation.what
