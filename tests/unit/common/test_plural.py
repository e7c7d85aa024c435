"""Numbers in texts."""

from __future__ import annotations

import pytest

from batonmq.common.plural import counted


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 days"), (1, "1 day"), (2, "2 days"), (12_345, "12,345 days")]
)
def test_one_is_singular(number: int, text: str) -> None:
    assert counted(number, "day") == text


def test_other_plurals_and_verbs_are_named() -> None:
    assert counted(1, "batch", "batches") == "1 batch"
    assert counted(0, "batch", "batches") == "0 batches"
    assert counted(1, "day was", "days were") + " done before" == "1 day was done before"
