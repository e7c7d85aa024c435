"""The figures of `batonmq spark skew` that need no Spark."""

from __future__ import annotations

import random

import pytest

from batonmq.spark.jobs.skew import HotQueue, empty_queues, gini, keys_with_half, shares


def by_definition(counts: list[int]) -> float:
    """Gini: mean difference of all pairs, divided by twice the mean."""
    differences = sum(abs(a - b) for a in counts for b in counts)
    return differences / (2 * len(counts) * sum(counts))


@pytest.mark.parametrize("seed", range(20))
def test_gini_and_half_agree_with_their_definitions(seed: int) -> None:
    rng = random.Random(seed)
    counts = [int(rng.paretovariate(0.8)) for _ in range(rng.randrange(1, 60))]
    frequencies = [(value, counts.count(value)) for value in set(counts)]
    assert gini(frequencies) == pytest.approx(by_definition(counts))
    ordered = sorted(counts, reverse=True)
    half = next(n for n in range(len(counts) + 1) if 2 * sum(ordered[:n]) >= sum(counts))
    assert keys_with_half(frequencies) == half


def test_a_topic_without_keys_is_even() -> None:
    assert gini([]) == 0
    assert keys_with_half([]) == 0


def test_shares_add_up() -> None:
    assert shares([(1, 4), (6, 1)]) == [(0, 0.0), (1, 0.6), (5, 1.0)]


def test_queues_without_a_message_count_in_the_mean() -> None:
    (first, second) = empty_queues([HotQueue("b:1", 10, 50, 1.0)], ["b:0", "b:1"])
    assert (first, second) == (HotQueue("b:1", 10, 50, 2.0), HotQueue("b:0", 0, 0, 0.0))
