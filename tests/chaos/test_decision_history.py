"""The sequential model notices harm that the epochs alone do not show, and no harm where there is none."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from batonmq.protocol.codes import ResponseCode
from tests.chaos import decision_history
from tests.chaos.decision_check import Decision
from tests.chaos.decision_history import Wrong, check_history
from tests.simulation import linearizability
from tests.simulation.controller_model import Alter, Altered, Elect, Elected, Read, Refused, SetState
from tests.simulation.linearizability import Operation

FIRST = SetState(1, 1, (1,), 1)
SETS = [(1, 2), (1,), (1, 2, 3), (1, 3)]


def history(count: int = 40) -> list[Operation]:
    """Alterations one after the other, a read after each, an election in the middle; at 10 us each."""
    state, operations = FIRST, []
    for number in range(count):
        at = number * 100
        if number == count // 2:
            state = SetState(3, 2, (3,), state.set_epoch + 1)
            asked, answer = Elect(3, designated=True), Elected(is_new=True, state=state)
            operations.append(Operation("s", "elect", at, at + 30, asked, answer))
        else:
            master = state.master
            assert master is not None
            sets = SETS if master == 1 else [(2, 3), (3,)]
            members = next(each for each in sets[number % len(sets) :] + sets if each != state.members)
            if number == count // 2 - 1:
                members = (1, 2, 3) if state.members != (1, 2, 3) else (1, 3)
            request = Alter(master, state.master_epoch, members, state.set_epoch)
            state = SetState(master, state.master_epoch, members, state.set_epoch + 1)
            operations.append(
                Operation("s", "alter", at, at + 30, request, Altered(members, state.set_epoch))
            )
        operations.append(Operation("s", "read", at + 40, at + 60, Read(), state))
    return operations


def found(operations: list[Operation], own: list[Decision] | None = None) -> list[Wrong]:
    return [Wrong(each) for each in check_history({"s": FIRST}, operations, own or []).counts]


def test_a_history_in_order() -> None:
    assert found(history()) == []


def test_a_change_granted_by_the_wrong_epoch() -> None:
    """The fence of RIP-67: two changes that start from the same set, both granted."""
    operations = history()
    fenced = operations[10]
    operations[10] = replace(fenced, asked=fenced.asked._replace(set_epoch=fenced.asked.set_epoch - 1))
    assert found(operations) == [Wrong.NOT_LINEARIZABLE]


def test_a_change_granted_to_a_master_that_was_deposed() -> None:
    operations = history()
    late = operations[50]
    operations[50] = replace(late, asked=late.asked._replace(master=1, master_epoch=1))
    assert found(operations) == [Wrong.NOT_LINEARIZABLE]


def test_a_set_that_nobody_asked_for() -> None:
    operations = history()
    alter, read = operations[10], operations[11]
    other = (1, 2, 3, 4)
    operations[10] = replace(alter, answer=Altered(other, alter.answer.set_epoch))
    operations[11] = replace(read, answer=read.answer._replace(members=other))
    assert found(operations) == [Wrong.NOT_LINEARIZABLE]


def test_a_read_that_mixes_two_states() -> None:
    operations = history()
    last = operations[-1]
    operations[-1] = replace(last, answer=last.answer._replace(master=1, master_epoch=1))
    assert found(operations) == [Wrong.NOT_LINEARIZABLE]


def test_a_stale_read() -> None:
    operations = history()
    operations[21] = replace(operations[21], answer=operations[19].answer)
    assert found(operations) == [Wrong.NOT_LINEARIZABLE]
    # While the change was under way it may have been answered before it.
    operations[20] = replace(operations[20], returned=operations[21].returned)
    assert found(operations) == []


def test_a_refusal_without_reason() -> None:
    operations = history()
    alter = operations[10]
    refusal = Refused(ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED)  # it is that set already
    again = replace(alter, called=alter.called - 20, returned=alter.called - 10, answer=refusal)
    assert found([*operations, again]) == [Wrong.NOT_LINEARIZABLE]
    assert found([*operations, replace(again, called=alter.called + 70, returned=alter.called + 90)]) == []


@pytest.mark.parametrize("granted", [10, 40])
def test_a_change_that_was_not_answered_explains_what_came_of_it(granted: int) -> None:
    """Of an alteration, or of the election in the middle."""
    operations = history()
    unheard = replace(operations[granted], returned=None, answer=None)
    operations[granted] = unheard
    assert found(operations) == []
    # It cannot explain anything before it was asked, and nothing explains it when it was not asked at all.
    late = replace(unheard, called=operations[granted + 1].called + 30)
    assert found([*operations[:granted], late, *operations[granted + 1 :]]) == [Wrong.NOT_LINEARIZABLE]
    assert found([*operations[:granted], *operations[granted + 1 :]]) == [Wrong.NOT_LINEARIZABLE]


def test_a_granted_change_that_is_undone() -> None:
    """A former leader granted the change alone; the next one goes on from before it."""
    operations = history()
    assert found([*operations[:11], *operations[12:]]) == []
    undone = replace(operations[11], answer=operations[9].answer)
    assert found([*operations[:11], undone]) == [Wrong.NOT_LINEARIZABLE]


def test_an_election_that_nobody_asked_for_is_in_the_event_log() -> None:
    operations = history()
    election = operations.pop(40)
    assert found(operations) == [Wrong.NOT_LINEARIZABLE]
    state = election.answer.state
    logged = Decision("s", "elect", 0, 0, state.set_epoch, state.members, state.master_epoch, state.master)
    assert found(operations, [logged, logged]) == []
    # What was decided before the load began is in the log, too.
    early = Decision("s", "elect", 0, 0, 1, (1,), 1, 1)
    assert found(operations, [early, logged]) == []


def test_many_that_were_not_answered_are_no_burden() -> None:
    """Killed controllers leave hundreds of them; few can have taken effect."""
    rng, operations = random.Random(1), history(2_000)
    unheard = []
    for operation in rng.sample(operations, 600):
        if isinstance(operation.asked, Alter):
            members = rng.choice([(1, 2, 3, 4), (1, 4)])
            asked = operation.asked._replace(members=members)
            unheard.append(replace(operation, returned=None, answer=None, asked=asked))
    unheard += [Operation("s", "elect", number, None, Elect(2, designated=True)) for number in range(200)]
    assert found([*operations, *unheard]) == []
    stale = replace(operations[-1], answer=operations[-3].answer)
    assert found([*operations[:-1], stale, *unheard]) == [Wrong.NOT_LINEARIZABLE]


def test_a_search_that_is_given_up_is_no_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linearizability, "MAX_STEPS", 20)
    assert decision_history.check_history({"s": FIRST}, history()).counts == {Wrong.UNDECIDED: 1}
