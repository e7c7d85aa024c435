"""Is the history of real controllers' decisions linearizable against the sequential model of the simulation?

Stronger than `decision_check.py`, which compares epochs only: each answer must follow from the request and
from the state that all others lead to. So a change granted to a deposed master, a set that nobody asked for,
a read that mixes two states and a refusal without reason are noticed, and a request that was not answered
explains what it could have done and no more. It needs to know what the controllers decide by themselves; the
event logs of ours tell.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum

from tests.chaos.check import Verdict
from tests.chaos.decision_check import Decision
from tests.simulation.controller_model import (
    Alter,
    Altered,
    ControllerModel,
    Decided,
    Elect,
    Elected,
    SetState,
)
from tests.simulation.linearizability import NotLinearizable, Operation, Undecided, check


class Wrong(StrEnum):
    """What must not be seen."""

    NOT_LINEARIZABLE = "no order of the requests explains their answers"
    UNDECIDED = "the search for an order of the requests was given up: nothing is proved"


def check_history(
    initial: Mapping[str, SetState], operations: Iterable[Operation], own: Iterable[Decision] = ()
) -> Verdict:
    """Check each broker set apart. `initial`: the states before the first operation; `own`: elections that
    nobody asked for, times unknown. The search is bounded (`linearizability.MAX_STEPS` for each set)."""
    verdict = Verdict()
    by_set: dict[str, list[Operation]] = {name: [] for name in initial}
    for operation in operations:
        by_set[str(operation.key)].append(operation)
    elections: dict[str, set[Decision]] = {}
    for decision in own:
        elections.setdefault(decision.broker_set, set()).add(decision)
    for name, asked in by_set.items():
        end = max((each.returned or each.called for each in asked), default=0.0)
        begin = min((each.called for each in asked), default=0.0)
        decided = [
            Operation(name, "controller", begin, end, Decided(), _state(each))
            for each in elections.get(name, ())
            if each.master_epoch > initial[name].master_epoch
        ]
        history = [*_possible(initial[name], [*asked, *decided])]
        try:
            check(ControllerModel({name: initial[name]}), history)
        except NotLinearizable as error:
            verdict.violated(Wrong.NOT_LINEARIZABLE, str(error))
        except Undecided as error:
            verdict.violated(Wrong.UNDECIDED, str(error))
    return verdict


def _state(decision: Decision) -> SetState:
    return SetState(decision.master, decision.master_epoch, decision.members, decision.epoch)


def _possible(initial: SetState, history: list[Operation]) -> Iterator[Operation]:
    """Without the unanswered requests that took no effect for certain, which would only widen the search: an
    epoch is given once, so one that was granted to a known request was not given to them."""
    epochs: set[int] = set()
    reigns: set[int] = set()
    newest = initial.master_epoch
    for operation in history:
        answer = operation.answer
        if isinstance(answer, Altered):
            epochs.add(answer.set_epoch)
            newest = max(newest, operation.asked.master_epoch)
            continue
        state = answer.state if isinstance(answer, Elected) else answer
        if not isinstance(state, SetState):
            continue
        newest = max(newest, state.master_epoch)
        if isinstance(operation.asked, Elect | Decided):
            epochs.add(state.set_epoch)
            reigns.add(state.master_epoch)
    unexplained = set(range(initial.master_epoch + 1, newest + 1)) - reigns
    for operation in history:
        if operation.returned is None:
            asked = operation.asked
            if isinstance(asked, Alter) and asked.set_epoch + 1 in epochs:
                continue
            if isinstance(asked, Elect) and not unexplained:
                continue
        yield operation
