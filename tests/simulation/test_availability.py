"""Sends are served whenever they could be, whichever links are cut."""

from __future__ import annotations

import random

import pytest

from tests.simulation.availability import (
    CLIENT,
    FOLLOWERS,
    LEADER,
    MASTER,
    SECOND_SLAVE,
    SLAVE,
    Case,
    all_cases,
    measure,
    outcome,
    served,
    some_cases,
)

LONGEST_GAP_S = 4.5
SAMPLES = 48
ONLY_THROUGH_OTHERS: Case = frozenset({(MASTER, SLAVE), (MASTER, LEADER), (CLIENT, SLAVE)})
"""The master reaches the leader through the other controllers, while its slave calls it silent."""
FOUND: tuple[Case, ...] = (
    # Both replicas reach the leader only through the other controllers, and the master must drop the slave:
    frozenset({(MASTER, SLAVE), (MASTER, LEADER), (SLAVE, LEADER)}),
    # The new leader reaches the master only through the other follower: it was counted as down.
    frozenset(
        {
            (CLIENT, SLAVE),
            (LEADER, FOLLOWERS[0]),
            (LEADER, FOLLOWERS[1]),
            (MASTER, FOLLOWERS[0]),
            (MASTER, SLAVE),
            (SLAVE, FOLLOWERS[0]),
            (SLAVE, LEADER),
        }
    ),
    # A heartbeat that a controller had passed on to the leader that was cut off kept the next one back:
    frozenset(
        {
            (CLIENT, SLAVE),
            (LEADER, FOLLOWERS[0]),
            (LEADER, FOLLOWERS[1]),
            (MASTER, FOLLOWERS[1]),
            (MASTER, LEADER),
            (MASTER, SLAVE),
            (SLAVE, FOLLOWERS[1]),
        }
    ),
)
FOUND_OF_THREE: tuple[Case, ...] = (
    # The new leader elected the slave that was cut off, too; the other one could not follow it.
    frozenset(
        {
            (CLIENT, MASTER),
            (CLIENT, SLAVE),
            (LEADER, FOLLOWERS[0]),
            (LEADER, FOLLOWERS[1]),
            *((MASTER, controller) for controller in (LEADER, *FOLLOWERS)),
            (MASTER, SLAVE),
            (MASTER, SECOND_SLAVE),
            *((SLAVE, controller) for controller in (LEADER, *FOLLOWERS)),
            (SLAVE, SECOND_SLAVE),
            (SECOND_SLAVE, FOLLOWERS[1]),
            (SECOND_SLAVE, LEADER),
        }
    ),
)
SAMPLES_OF_THREE = 40
CASES = (*FOUND, *random.Random(23).sample(list(all_cases()), SAMPLES))


def named(case: Case) -> str:
    return ",".join(f"{a}-{b}" for a, b in sorted(case))


@pytest.mark.simulation
@pytest.mark.parametrize("case", CASES, ids=named)
def test_sends_are_served_if_and_only_if_they_could_be(case: Case) -> None:
    seen = measure(case)
    assert seen.served == served(case)
    if seen.served:
        assert seen.gap_s is not None
        assert seen.gap_s <= min(LONGEST_GAP_S, outcome(case).within_s)


@pytest.mark.simulation
@pytest.mark.parametrize("case", [*FOUND_OF_THREE, *some_cases(SAMPLES_OF_THREE, 5)], ids=named)
def test_with_three_replicas_sends_are_served_if_and_only_if_they_could_be(case: Case) -> None:
    seen = measure(case, replicas=3)
    assert seen.served == served(case, 3)
    if seen.served:
        assert seen.gap_s is not None
        assert seen.gap_s <= outcome(case, 3).within_s


@pytest.mark.simulation
@pytest.mark.parametrize("case", CASES[: SAMPLES // 2], ids=named)
def test_links_cut_in_one_direction_stop_no_more_than_links_cut_in_both(case: Case) -> None:
    assert measure(case, one_way=True).served or not served(case)


@pytest.mark.simulation
@pytest.mark.parametrize("seed", range(10))
def test_a_master_that_others_forward_for_is_not_silent(seed: int) -> None:
    """Depending on when its last direct heartbeat came, it was counted as silent before one was forwarded."""
    seen = measure(ONLY_THROUGH_OTHERS, seed)
    assert seen.served and seen.gap_s is not None
    assert seen.gap_s <= LONGEST_GAP_S


@pytest.mark.simulation
@pytest.mark.parametrize("seed", range(3))
def test_a_slave_that_the_controllers_count_as_down_does_not_keep_a_lost_one_in_the_set(seed: int) -> None:
    """They refuse every set with a replica that is down for them, though it follows the master."""
    unseen = frozenset((SLAVE, controller) for controller in (LEADER, *FOLLOWERS))
    lost = frozenset({(MASTER, SECOND_SLAVE)})
    assert served(unseen | lost, 3)
    seen = measure(lost, seed, replicas=3, earlier=unseen)
    assert seen.served and seen.gap_s is not None
    assert seen.gap_s <= LONGEST_GAP_S


def test_the_theory_knows_the_plain_cases() -> None:
    assert served(frozenset())
    assert not served(frozenset({(CLIENT, MASTER)}))
    assert served(frozenset({(MASTER, SLAVE)}))
    alone = frozenset((MASTER, other) for other in (LEADER, *FOLLOWERS, SLAVE))
    assert served(alone), "the slave is elected"
    assert not served(alone | {(CLIENT, SLAVE)})
    silent = frozenset({(LEADER, FOLLOWERS[0]), (LEADER, FOLLOWERS[1]), FOLLOWERS})
    assert served(silent), "nothing needs a decision"
    assert not served(silent | {(MASTER, SLAVE)})
    assert not served(silent | {(MASTER, SECOND_SLAVE)}, 3), "nobody may leave the SyncStateSet"
    assert served(frozenset({(MASTER, SLAVE), (MASTER, SECOND_SLAVE)}), 3), "the master is alone in the set"
    alone |= {(MASTER, SECOND_SLAVE)}
    assert served(alone, 3)
    assert served(alone | {(CLIENT, SLAVE)}, 3) is None, "either slave may be elected"
    assert not served(alone | {(CLIENT, SLAVE), (CLIENT, SECOND_SLAVE)}, 3)
