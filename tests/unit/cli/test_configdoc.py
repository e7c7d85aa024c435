"""The documentation's page of configuration keys is what the programs accept."""

from __future__ import annotations

from pathlib import Path

import pytest

from batonmq.cli.configdoc import page

PAGE = Path(__file__).parents[3] / "docs" / "configuration.md"


def test_the_page_is_current(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROCKETMQ_HOME", raising=False)
    assert PAGE.read_text(encoding="utf-8") == page(), (
        "run: python -m batonmq.cli.configdoc docs/configuration.md"
    )


def test_a_row_has_key_type_default_mark_and_meaning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "home", staticmethod(lambda: Path("/home/somebody")))
    text = page()
    assert "| `listenPort` | int, 0 to 65535 | `10911` |  | Port for clients" in text
    assert "| `fileReservedTime` | int, 0 or more | `72` | yes | Hours after" in text
    assert "| `storePathRootDir` | str | `~/store` |" in text
    assert "True" not in text and "/home/somebody" not in text
