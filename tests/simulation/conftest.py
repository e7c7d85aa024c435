"""What all simulation tests share."""

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Programs log every fault that a simulation injects."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
