import itertools
import random

import pytest

from batonmq.raft.quorum import Vote, majority, reached_by_majority, tally


@pytest.mark.parametrize("size", range(1, 8))
def test_the_fast_rule_agrees_with_counting(size: int) -> None:
    rng = random.Random(size)
    for _ in range(300):
        values = [rng.randrange(5) for _ in range(size)]
        slow = max(v for v in range(6) if sum(x >= v for x in values) * 2 > size)
        assert reached_by_majority(values) == slow, values


def test_two_majorities_of_the_same_group_overlap() -> None:
    for size in range(1, 7):
        groups = list(itertools.combinations(range(size), majority(size)))
        assert all(set(a) & set(b) for a in groups for b in groups)


@pytest.mark.parametrize("size", range(1, 6))
def test_an_election_is_decided_when_no_answer_can_change_it(size: int) -> None:
    voters = [f"n{i}" for i in range(size)]
    for answers in itertools.product([True, False, None], repeat=size):
        votes = {v: a for v, a in zip(voters, answers, strict=True) if a is not None}
        votes["stranger"] = True
        outcomes = set()
        missing = [v for v in voters if v not in votes]
        for rest in itertools.product([True, False], repeat=len(missing)):
            final = {**votes, **dict(zip(missing, rest, strict=True))}
            outcomes.add(sum(final[v] for v in voters) * 2 > size)
        expected = Vote.PENDING if len(outcomes) == 2 else Vote.WON if outcomes == {True} else Vote.LOST
        assert tally(votes, voters) is expected, votes
