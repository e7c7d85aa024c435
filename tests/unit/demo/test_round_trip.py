"""The sums of the demonstration's round trip notice rows that are missing, doubled or out of order."""

from __future__ import annotations

import json

import pytest

from batonmq.demo.round_trip import sum_up


def row(carrier: str, flights: int, total: int) -> bytes:
    return json.dumps({"carrier": carrier, "flights": flights, "total": total}).encode()


RIGHT = [[row("UA", 3, 3), row("DL", 1, 1), row("UA", 2, 5)], [row("B6", 4, 4)]]
STORED = {"UA": 5, "DL": 1, "B6": 4}


def test_all_counted_once_is_right() -> None:
    outcome = sum_up(RIGHT, STORED)
    assert (outcome.right, outcome.counted, outcome.flights, outcome.rows) == (True, 10, 10, 4)


@pytest.mark.parametrize(
    "bodies",
    [
        [RIGHT[0], []],
        [[*RIGHT[0], RIGHT[0][2]], RIGHT[1]],
        [[RIGHT[0][0], *RIGHT[0]], RIGHT[1]],
        [[RIGHT[0][0], RIGHT[0][1]], RIGHT[1]],
        [[RIGHT[0][2], RIGHT[0][1], RIGHT[0][0]], RIGHT[1]],
        [*RIGHT, [row("XX", 1, 1)]],
    ],
    ids=["lost", "last twice", "first twice", "last lost", "out of order", "foreign"],
)
def test_each_fault_is_noticed(bodies: list[list[bytes]]) -> None:
    outcome = sum_up(bodies, STORED)
    assert outcome.wrong and not outcome.right
