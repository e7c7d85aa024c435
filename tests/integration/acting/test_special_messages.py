"""The master of a broker set is killed: its slave goes on with what a master does."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.integration.acting.group import Pairs
from tests.integration.acting.stories import STORIES


@pytest.mark.parametrize("name", STORIES)
async def test_a_slave_continues_with(name: str, tmp_path: Path) -> None:
    story, sets, settings = STORIES[name]
    pairs = Pairs(tmp_path, dict(settings), sets=sets)
    try:
        await pairs.up()
        await story(pairs)
    finally:
        await pairs.close()
    text = pairs.logs()
    assert "Traceback" not in text, text[text.index("Traceback") - 300 :][:3000]
