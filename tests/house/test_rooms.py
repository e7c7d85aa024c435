"""docs/architecture.md shows every room and every file."""

from __future__ import annotations

from pathlib import Path

import pytest

from . import rooms
from .rooms import BEGIN, END, PAGE, Unsaid, first_sentence, rendered, replaced


def test_the_page_shows_the_rooms_and_files_as_they_are() -> None:
    page = PAGE.read_text()
    assert replaced(page) == page, "run `python -m tests.house.rooms`"


def test_the_map_names_every_module() -> None:
    shown = rendered()
    for path in rooms.PACKAGE.rglob("*.py"):
        assert path.name == "__init__.py" or f"`{path.name}`" in shown


@pytest.mark.parametrize(
    ("docstring", "sentence"),
    [
        ('"""One thing. And another."""', "One thing"),
        ('"""One thing: with e.g. this\nand that.\n\nMore."""', "One thing: with e.g. this and that"),
        ('"""No stop"""', "No stop"),
    ],
)
def test_a_file_is_described_by_its_first_sentence(tmp_path: Path, docstring: str, sentence: str) -> None:
    path = tmp_path / "module.py"
    path.write_text(docstring)
    assert first_sentence(path) == sentence


def test_what_says_nothing_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(rooms, "ROOT", tmp_path)
    (tmp_path / "silent.py").write_text("x = 1\n")
    with pytest.raises(Unsaid, match=r"silent.py has no docstring"):
        first_sentence(tmp_path / "silent.py")


def test_a_page_without_its_comments_is_an_error() -> None:
    with pytest.raises(ValueError, match="no <!-- rooms -->"):
        replaced("nothing")
    assert replaced(f"a\n{BEGIN}\n{END}\nb").startswith("a\n") and replaced(f"{BEGIN}{END}b").endswith("b")
