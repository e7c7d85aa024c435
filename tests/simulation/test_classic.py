"""Groups without controllers under seeded faults."""

from __future__ import annotations

import logging

import pytest

from tests.simulation.classic import run


@pytest.fixture(autouse=True)
def quiet():
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.simulation
@pytest.mark.parametrize("seed", range(32))
def test_acknowledged_messages_stay_on_the_promised_number_of_replicas(seed):
    story = run(seed)
    assert story.acked
