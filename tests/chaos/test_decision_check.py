"""The check of the controllers' decisions notices each kind of harm that is planted in a good history."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Literal

from tests.chaos.decision_check import Decision, Wrong, check_decisions
from tests.chaos.decisions import logged_decisions

SETS = [(1, 2), (1,), (1, 2, 3), (1, 3)]


def history() -> list[Decision]:
    """Alterations one after the other, a read after each; an election in the middle."""
    decisions = []
    for epoch in range(2, 22):
        at = epoch * 100
        master_epoch, master = (1, 1) if epoch < 12 else (2, 3)
        members = (3,) if epoch == 12 else SETS[epoch % 4] if epoch < 12 else (2, 3) if epoch % 2 else (3,)
        kind: Literal["elect", "alter"] = "elect" if epoch == 12 else "alter"
        decisions += [
            Decision("s", kind, at, at + 30, epoch, members, master_epoch, master),
            Decision("s", "read", at + 40, at + 60, epoch, members, master_epoch, master),
        ]
    return decisions


def found(decisions: list[Decision], final: Decision | None = None) -> dict[StrEnum, int]:
    last = final if final is not None else replace(decisions[-1], asked_us=9_000, answered_us=9_001)
    return dict(check_decisions(decisions, [last]).counts)


def test_a_history_in_order() -> None:
    verdict = check_decisions(history(), [replace(history()[-1], asked_us=9_000, answered_us=9_001)])
    assert verdict.ok
    assert (verdict.sent, verdict.acked) == (40, 20)


def test_what_nobody_could_be_asked_for_at_the_end_is_not_called_forgotten() -> None:
    assert check_decisions(history(), None).ok
    assert list(check_decisions(history(), []).counts) == [Wrong.FORGOTTEN]


def test_overlapping_requests_may_be_answered_in_any_order() -> None:
    decisions = history()
    decisions[3] = replace(decisions[3], asked_us=0, epoch=2, members=decisions[0].members)
    assert found(decisions) == {}


def test_one_epoch_with_two_sets() -> None:
    decisions = history()
    decisions[5] = replace(decisions[5], members=(1, 2, 3, 4))
    assert found(decisions) == {Wrong.TWO_SETS: 1}


def test_one_master_epoch_with_two_masters() -> None:
    decisions = history()
    decisions[5] = replace(decisions[5], master=2)
    assert found(decisions) == {Wrong.TWO_MASTERS: 1}


def test_a_change_granted_twice() -> None:
    decisions = history()
    decisions.append(replace(decisions[4], asked_us=decisions[4].asked_us + 1))
    assert found(decisions, replace(history()[-1], asked_us=9_000)) == {Wrong.WON_TWICE: 1}


def test_a_granted_change_that_is_undone() -> None:
    """A former leader granted epoch 10 alone; the next one goes on from 9."""
    decisions = history()
    lost = decisions[16]
    assert lost.epoch == 10
    later = [
        replace(d, epoch=d.epoch - 1, members=d.members + (9,) * (d.epoch == 11)) for d in decisions[18:]
    ]
    counts = found([*decisions[:18], *later], replace(later[-1], asked_us=9_000, answered_us=9_001))
    assert counts[Wrong.BACKWARDS] == 1
    assert counts[Wrong.TWO_SETS] > 0


def test_a_stale_read() -> None:
    decisions = history()
    decisions[9] = replace(
        decisions[9], epoch=decisions[0].epoch, members=decisions[0].members, master_epoch=1, master=1
    )
    assert found(decisions) == {Wrong.STALE: 1}


def test_a_decision_that_is_gone_at_the_end() -> None:
    decisions = history()
    final = replace(decisions[-3], asked_us=9_000, answered_us=9_001)
    assert found(decisions, final) == {Wrong.FORGOTTEN: 1, Wrong.STALE: 1}
    assert dict(check_decisions(decisions, []).counts) == {Wrong.FORGOTTEN: 1}


def test_the_event_log_contradicts_an_answer(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_text(
        '{"time_ms":1,"node":"n0","event":"sync-state-set","broker_name":"s","before":[1],"after":[1,2],'
        '"sync_state_set_epoch":2,"master_epoch":1}\n'
        '{"time_ms":1,"node":"n0","event":"leader","node_id":"n0"}\n'
        '{"time_ms":2,"node":"n0","event":"election","result":"new-master","broker_name":"s","new_master":2,'
        '"sync_state_set_epoch":12,"master_epoch":2}\n'
        '{"time_ms":3,"node":"n0","event":"sync-st'
    )
    logged = list(logged_decisions([tmp_path]))
    assert [(d.kind, d.epoch, d.members, d.master) for d in logged] == [
        ("alter", 2, (1, 2), None),
        ("elect", 12, (2,), 2),
    ]
    counts = check_decisions(history(), [replace(history()[-1], asked_us=9_000)], logged).counts
    assert counts[Wrong.TWO_SETS] == 2
    assert counts[Wrong.TWO_MASTERS] == 1


def test_java_has_no_event_logs(tmp_path: Path) -> None:
    assert list(logged_decisions([tmp_path])) == []
