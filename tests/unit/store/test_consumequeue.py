"""One consume queue with gaps, which fillers stand for: where it begins and ends after each kind of cut."""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from batonmq.store.consumequeue import UNIT, UNIT_SIZE, ConsumeQueue, OpenFiles

SIZE = 100
UNITS_A_FILE = 8
GAPS = st.lists(st.integers(0, 20), min_size=1, max_size=30)
"""Unused queue offsets before each unit."""
CUT = st.integers(0, 31 * SIZE)


def offsets_of(gaps: list[int]) -> dict[int, int]:
    """Queue offset -> physical offset."""
    found: dict[int, int] = {}
    at = 0
    for number, gap in enumerate(gaps):
        found[at + gap] = number * SIZE
        at += gap + 1
    return found


@contextmanager
def queue(directory: Path) -> Iterator[ConsumeQueue]:
    files = OpenFiles()
    try:
        yield ConsumeQueue(directory, "T", 0, UNITS_A_FILE * UNIT_SIZE, files, deque())
    finally:
        files.close()


@contextmanager
def filled(gaps: list[int]) -> Iterator[tuple[Path, dict[int, int]]]:
    """Its directory, and what is in it."""
    with tempfile.TemporaryDirectory() as directory:
        units = offsets_of(gaps)
        path = Path(directory) / "T" / "0"
        with queue(path) as made:
            for queue_offset, physical in units.items():
                made.pending, made.pending_from = bytearray(UNIT.pack(physical, SIZE, 0)), queue_offset
                made.write_pending()
        yield path, units


def shown(found: ConsumeQueue) -> dict[int, int]:
    """The units between the ends, without fillers."""
    units = enumerate(found.units(found.min_offset, found.max_offset), found.min_offset)
    return {queue_offset: unit[0] for queue_offset, unit in units if unit[1] == SIZE}


def up_to(units: dict[int, int], end: int) -> dict[int, int]:
    return {queue_offset: physical for queue_offset, physical in units.items() if physical + SIZE <= end}


def load(found: ConsumeQueue, safe_end: int) -> None:
    found.load(safe_end, trusted=True, holds=lambda *_: True)


@given(GAPS, CUT)
def test_a_queue_ends_with_the_last_unit_that_the_log_holds(gaps: list[int], end: int) -> None:
    with filled(gaps) as (path, units), queue(path) as found:
        load(found, len(gaps) * SIZE)
        assert shown(found) == units and found.max_offset == max(units) + 1
        found.truncate(end)
        left = up_to(units, end)
        assert shown(found) == left
        assert found.max_offset == (max(left) if left else min(units) - 1) + 1
        with queue(path) as again:
            load(again, len(gaps) * SIZE)
            assert shown(again) == left and again.max_offset == found.max_offset


@given(GAPS, CUT)
def test_what_lies_beyond_the_end_of_the_log_is_cut_when_a_queue_is_opened(gaps: list[int], end: int) -> None:
    with filled(gaps) as (path, units), queue(path) as found:
        load(found, end)
        left = up_to(units, end)
        assert shown(found) == left
        assert found.max_offset == (max(left) if left else min(units) - 1) + 1


@given(GAPS, CUT)
def test_a_queue_begins_with_the_first_unit_that_the_log_still_holds(gaps: list[int], begin: int) -> None:
    with filled(gaps) as (path, units), queue(path) as found:
        load(found, len(gaps) * SIZE)
        for gone in found.set_min_physical(begin):
            gone.unlink()
        left = {queue_offset: physical for queue_offset, physical in units.items() if physical >= begin}
        assert shown(found) == left
        assert found.min_offset == min(left, default=found.max_offset) and found.max_offset == max(units) + 1
