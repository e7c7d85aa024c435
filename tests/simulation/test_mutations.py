"""The simulation notices a missing guard: without it some seed soon fails."""

from __future__ import annotations

import pytest

from tests.simulation.mutations import MUTATIONS, violation

KEPT = [
    "confirm-alone",
    "ack-at-once",
    "no-truncation",
    "elect-anyone",
    "epoch-reuse",
    "silence-agrees",
    "resume-term",
    "forged-ack",
    "stale-epoch",
    "torn-tail",
    "epochs-late",
    "empty-epoch",
    "old-role",
    "unfenced",
    "id-again",
    "refusal-believed",
]
PATIENCE = 40
"""Seeds tried before a mutation counts as unnoticed; each needs a few on average (docs/simulation.md)."""


@pytest.mark.simulation
@pytest.mark.parametrize("name", KEPT)
def test_a_missing_guard_is_noticed(name):
    assert any(violation(name, seed) for seed in range(PATIENCE)), MUTATIONS[name].what
