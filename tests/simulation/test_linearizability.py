"""The history checker: what it must refuse, what it must accept, and that it agrees with brute force."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Any

import pytest

from tests.simulation import linearizability
from tests.simulation.linearizability import NotLinearizable, Operation, Undecided, check


class Register:
    """Operations: write, read (answered with the value), and swap of old and new (answered yes or no)."""

    def initial(self, key: Any) -> int:
        return 0

    def step(self, state: int, asked: Any, answer: Any) -> int | None:
        match asked:
            case ("write", value):
                return None if answer is None and value == state else value
            case ("read",):
                return state if answer == state else None
            case ("swap", old, new) if answer is None:
                return new if state == old and old != new else None
            case ("swap", old, new) if answer == "yes":
                return new if state == old else None
            case ("swap", old, _) if answer == "no":
                return state if state != old else None
        return None

    def only_reads(self, asked: Any, answer: Any) -> bool:
        return asked[0] == "read" or answer == "no"


def op(called: float, returned: float | None, asked: Any, answer: Any = "done", key: str = "x") -> Operation:
    return Operation(key, "client", called, returned, asked, answer)


LINEARIZABLE = {
    "nothing": [],
    "one after the other": [op(0, 1, ("write", 1)), op(2, 3, ("read",), 1)],
    "a read that overlaps a write sees the old": [op(0, 5, ("write", 1)), op(1, 2, ("read",), 0)],
    "a read that overlaps a write sees the new": [op(0, 5, ("write", 1)), op(1, 2, ("read",), 1)],
    "what overlaps has any order": [
        op(0, 9, ("write", 1)),
        op(0, 9, ("write", 2)),
        op(1, 2, ("read",), 2),
        op(3, 4, ("read",), 1),
    ],
    "an unknown write that never happened": [op(0, None, ("write", 1)), op(5, 6, ("read",), 0)],
    "an unknown write that happened": [op(0, None, ("write", 1)), op(5, 6, ("read",), 1)],
    "an unknown write that happened late": [
        op(0, None, ("write", 1)),
        op(5, 6, ("read",), 0),
        op(7, 8, ("read",), 1),
    ],
    "a refusal between unknown writes": [
        op(0, None, ("swap", 0, 1)),
        op(0, None, ("swap", 1, 2)),
        op(3, 4, ("swap", 1, 7), "no"),
        op(5, 6, ("read",), 2),
    ],
    "other keys": [op(0, 1, ("write", 1)), op(2, 3, ("read",), 0, key="y")],
    "a write of what is there already, which comes later": [
        op(0, 9, ("write", 0)),
        op(1, 2, ("write", 1)),
        op(3, 4, ("read",), 1),
        op(10, 11, ("read",), 0),
    ],
    "at the same time": [op(0, 1, ("write", 1)), op(1, 2, ("read",), 0)],
}

NOT_LINEARIZABLE = {
    "a stale read": [op(0, 1, ("write", 1)), op(2, 3, ("read",), 0)],
    "a value that nobody wrote": [op(0, 1, ("write", 1)), op(2, 3, ("read",), 2)],
    "the new and then the old": [
        op(0, 9, ("write", 1)),
        op(1, 2, ("read",), 1),
        op(3, 4, ("read",), 0),
    ],
    "granted to two": [op(0, 9, ("swap", 0, 1), "yes"), op(0, 9, ("swap", 0, 2), "yes")],
    "an unknown write before it was called": [op(5, None, ("write", 1)), op(0, 1, ("read",), 1)],
    "an unknown write that happened twice": [
        op(0, None, ("write", 1)),
        op(1, 2, ("read",), 1),
        op(3, 4, ("write", 2)),
        op(5, 6, ("read",), 2),
        op(7, 8, ("read",), 1),
    ],
    "only one of two keys": [
        op(0, 1, ("write", 1)),
        op(2, 3, ("read",), 1),
        op(0, 1, ("write", 1), key="y"),
        op(2, 3, ("read",), 0, key="y"),
    ],
}


@pytest.mark.parametrize("name", LINEARIZABLE)
def test_a_linearizable_history_is_accepted(name: str) -> None:
    check(Register(), LINEARIZABLE[name])


@pytest.mark.parametrize("name", NOT_LINEARIZABLE)
def test_a_history_that_is_not_is_refused(name: str) -> None:
    with pytest.raises(NotLinearizable):
        check(Register(), NOT_LINEARIZABLE[name])


def test_a_refusal_names_the_answer_that_nothing_explains() -> None:
    history = [op(0, 1, ("write", 1)), op(1.5, 9, ("write", 7)), op(2, 3, ("read",), 0)]
    with pytest.raises(NotLinearizable) as refused:
        check(Register(), history)
    text = str(refused.value)
    assert "('read',) -> 0" in text.partition("Before it returned")[0]
    assert "('write', 7)" in text.partition("Operations that ran")[2]


def test_a_search_too_long_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linearizability, "MAX_STEPS", 100)
    history = [op(0, 99, ("write", value)) for value in range(1, 12)]
    with pytest.raises(Undecided):
        check(Register(), [*history, op(100, 101, ("read",), 55)])


def _by_force(history: Sequence[Operation]) -> bool:
    """Every order of every choice of the unknown operations, tried out."""
    known = [o for o in history if o.returned is not None]
    unknown = [o for o in history if o.returned is None]
    for count in range(len(unknown) + 1):
        for chosen in itertools.combinations(unknown, count):
            for order in itertools.permutations([*known, *chosen]):
                if _fits(order):
                    return True
    return False


def _fits(order: Sequence[Operation]) -> bool:
    for place, operation in enumerate(order):
        if any(o.returned is not None and o.returned < operation.called for o in order[place + 1 :]):
            return False
    state: int | None = 0
    for operation in order:
        answer = None if operation.returned is None else operation.answer
        state = Register().step(state, operation.asked, answer)
        if state is None:
            return False
    return True


def test_it_agrees_with_brute_force() -> None:
    rng = random.Random(5)
    verdicts = {True: 0, False: 0}
    for _ in range(1_500):
        history = []
        for _ in range(rng.randint(2, 5)):
            called = rng.randint(0, 10)
            returned = None if rng.random() < 0.25 else called + rng.randint(1, 6)
            value = rng.randint(0, 2)
            asked, answer = rng.choice(
                (
                    (("write", value), "done"),
                    (("read",), value),
                    (("swap", value, rng.randint(0, 2)), rng.choice(("yes", "no"))),
                )
            )
            if asked != ("read",) or returned is not None:
                history.append(op(called, returned, asked, answer))
        expected = _by_force(history)
        verdicts[expected] += 1
        try:
            check(Register(), history)
        except NotLinearizable:
            assert not expected, "\n".join(map(str, history))
        else:
            assert expected, "\n".join(map(str, history))
    assert min(verdicts.values()) > 300
