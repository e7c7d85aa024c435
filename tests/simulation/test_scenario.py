"""Whole clusters under seeded faults: nothing acknowledged is lost, one master an epoch, equal logs."""

from __future__ import annotations

import logging

import pytest

from tests.simulation.__main__ import shape_of
from tests.simulation.scenario import run

SEEDS = 120
EVER_FAILED: dict[int, str] = {}
"""Seeds that once broke an invariant, and what was wrong: they stay for ever."""


@pytest.fixture(autouse=True)
def quiet():
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.simulation
@pytest.mark.parametrize("seed", [*range(SEEDS), *EVER_FAILED])
def test_acknowledged_messages_survive(seed):
    story = run(seed, shape_of(seed))
    assert story.acked
    assert story.masters
