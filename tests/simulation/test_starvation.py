"""Starved processes are not taken for hung ones, and hung ones are noticed within two seconds."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.simulation.starvation import run

SEEDS = 12


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.simulation
@pytest.mark.parametrize("seed", range(SEEDS))
def test_starved_masters_stay_and_hung_replicas_are_noticed(seed: int) -> None:
    story = run(seed)
    assert story.pauses and story.stops and story.stalls
