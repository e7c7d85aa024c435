"""Whole clusters with transactions under seeded faults (`transactions.py`), and guards taken out of them."""

from __future__ import annotations

import pytest

from tests.simulation.story import shape_of
from tests.simulation.transaction_mutations import MUTATIONS, violation
from tests.simulation.transactions import run_transactions

SEEDS = 8
KEPT = ["unconfirmed", "no-search", "early-checks", "repeats", "no-checks"]
PATIENCE = 8
"""Seeds tried before a mutation counts as unnoticed."""


@pytest.mark.simulation
@pytest.mark.parametrize("seed", range(SEEDS))
def test_transactions_end_as_their_producer_decides(seed):
    story, scenario = run_transactions(seed, shape_of(seed))
    assert story.masters
    assert sum(transaction.read for transaction in scenario.transactions.values()) > 20


@pytest.mark.simulation
@pytest.mark.parametrize("name", KEPT)
def test_a_missing_guard_is_noticed(name):
    assert any(violation(name, seed) for seed in range(PATIENCE)), MUTATIONS[name].what
