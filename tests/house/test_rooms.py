"""docs/architecture.md names every room and every file."""

from __future__ import annotations

import pytest

from .rooms import BEGIN, END, PAGE, as_it_should_be, differences, listed


def test_the_page_names_every_room_and_file() -> None:
    found = differences(PAGE.read_text())
    assert not found, "see `python -m tests.house.rooms`: " + "; ".join(found)


def test_what_is_missing_and_what_is_gone_is_named() -> None:
    whole = as_it_should_be("").replace("TODO.", "Some room.")
    assert differences(whole) == []
    assert differences(whole.replace(", `core.py`", "")) != []
    assert "raft/core.py is missing" in differences(whole.replace("`core.py`, ", ""))
    assert "raft/gone.py is gone" in differences(whole.replace("`node.py`", "`node.py`, `gone.py`"))
    assert "attic/ is gone" in differences(whole.replace(END, f"- `attic/` — Old things. `a.py`\n{END}"))
    without_raft = "\n".join(line for line in whole.splitlines() if "`raft/`" not in line)
    assert differences(without_raft) == ["raft/ is missing"]
    assert "the purpose of raft/ is missing" in differences(as_it_should_be(""))


def test_a_pattern_stands_for_many_files_and_is_kept() -> None:
    page = f"{BEGIN}\n- `admin/commands/` — One file for each command. `*.py`\n{END}"
    room = listed(page)["admin/commands/"]
    assert (room.purpose, room.files) == ("One file for each command.", ("*.py",))
    assert "- `admin/commands/` — One file for each command. `*.py`\n" in as_it_should_be(page)


@pytest.mark.parametrize(
    ("page", "words"),
    [("no list", "no list between"), (f"{BEGIN}\n- raft: core.py\n{END}", "not of the form")],
)
def test_a_page_that_cannot_be_read_is_an_error(page: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        listed(page)
