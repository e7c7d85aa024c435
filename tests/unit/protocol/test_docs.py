"""The documentation's table of requests is the registry's."""

from __future__ import annotations

from pathlib import Path

import pytest

from batonmq.protocol.__main__ import renewed, table

PAGE = Path(__file__).parents[3] / "docs" / "protocol.md"


def test_the_page_shows_every_declared_request() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert renewed(text) == text, "run: python -m batonmq.protocol docs/protocol.md"


def test_a_row_has_code_meaning_and_fields() -> None:
    (row,) = [line for line in table().splitlines() if "| GET_ROUTEINFO_BY_TOPIC |" in line]
    assert row.startswith("| 105 |") and "topic, *acceptStandardJsonOnly*" in row


def test_a_page_without_markers_is_refused() -> None:
    with pytest.raises(ValueError, match="missing"):
        renewed("nothing here")
