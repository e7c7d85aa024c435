"""The check of what a reader saw notices each kind of fault. Two queues, two batches of four rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.spark.visibility import CHUNK, Findings, State, batch_ends, batch_of, check, source_place

BATCHES = [[0, 0, 1, 1], [0, 0, 1, 1]]


def states(*rows: tuple[tuple[int, int], int]) -> list[State]:
    """One a second: (ends, newest decided batch)."""
    return [State(float(at), at + 0.5, ends, decided) for at, (ends, decided) in enumerate(rows)]


WHOLE = [((0, 0), -1), ((2, 2), 0), ((4, 4), 1)]


def look(*rows: tuple[tuple[int, int], int], kills: list[tuple[float, float]] | None = None) -> Findings:
    return check(states(*rows), BATCHES, kills or [], whole_at_once=True)


def test_whole_batches_are_right() -> None:
    found = look(*WHOLE)
    assert (found.states, found.partial, found.wrong) == (3, 0, [])


def test_a_part_of_a_batch_is_noticed() -> None:
    found = look(WHOLE[0], ((2, 1), 0), *WHOLE[1:])
    assert found.torn == ["3 of 4 rows of batch 0 were visible"]
    relaxed = check(states(WHOLE[0], ((2, 1), 0), *WHOLE[1:]), BATCHES, [], whole_at_once=False)
    assert relaxed.wrong == []


@pytest.mark.parametrize(("kill", "explains"), [(0.2, False), (0.7, True), (1.2, False)])
def test_only_a_kill_after_the_last_whole_state_explains_a_part(kill: float, explains: bool) -> None:
    found = look(WHOLE[0], ((2, 1), 0), *WHOLE[1:], kills=[(kill, kill)])
    assert (found.partial, len(found.torn)) == ((1, 0) if explains else (0, 1))


def test_rows_of_an_undecided_batch_are_noticed() -> None:
    assert len(look(*WHOLE[:2], ((4, 4), 0)).undecided) == 1
    assert len(look(WHOLE[0], ((2, 2), -1)).undecided) == 1


def test_a_batch_before_its_predecessor_is_noticed() -> None:
    found = check(states(((3, 1), 1)), BATCHES, [], whole_at_once=False)
    assert found.overtaken == ["batch 1 was visible, and batch 0 not all of it"]


def test_ends_that_go_back_are_noticed() -> None:
    assert look(*WHOLE, ((4, 2), 1)).taken_back == ["the ends went back from [4, 4] to [4, 2]"]


def test_rows_belong_to_the_batch_that_read_them(tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    for batch, ends in enumerate([(1_500, 0), (2_000, 1_000)]):
        offsets = {"t": {"b:0": ends[0], "b:1": ends[1]}}
        (tmp_path / "offsets" / str(batch)).write_text(f"v1\n{{}}\n{json.dumps(offsets)}")
    ends = batch_ends(tmp_path, "t", 2)
    assert ends == [[1_500, 2_000], [0, 1_000]]
    assert [source_place(n, 2) for n in (0, CHUNK, 2 * CHUNK + 7)] == [(0, 0), (1, 0), (0, CHUNK + 7)]
    assert [batch_of(n, ends) for n in (0, 999, CHUNK, 2 * CHUNK + 499, 2 * CHUNK + 500)] == [0, 0, 1, 0, 1]
