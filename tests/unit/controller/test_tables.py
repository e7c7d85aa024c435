"""The election and SyncStateSet rules, as tables in tests/data/controller."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.unit.controller.tables import Script

DATA = Path(__file__).parents[2] / "data" / "controller"
REWRITE = os.environ.get("REWRITE_TABLES") == "1"


def cases() -> list[tuple[Path, str]]:
    found = []
    for path in sorted(DATA.glob("*.txt")):
        for block in path.read_text().split("\n\n\n"):
            title = block.strip().splitlines()[0]
            assert title.startswith("# "), f"{path}: a case begins with its title: {title}"
            found.append((path, title))
    return found


@pytest.mark.parametrize(("path", "title"), cases(), ids=lambda value: str(getattr(value, "stem", value)))
def test_table(path: Path, title: str) -> None:
    blocks = path.read_text().split("\n\n\n")
    position = next(i for i, block in enumerate(blocks) if block.strip().splitlines()[0] == title)
    script, _, expected = blocks[position].strip().partition("\n----")
    actual = Script().run(script)
    if REWRITE:
        blocks[position] = f"{script}\n----\n{actual}"
        path.write_text("\n\n\n".join(block.strip() for block in blocks) + "\n")
    else:
        assert actual == expected.strip()


def test_tables_are_there() -> None:
    assert len(cases()) > 30
