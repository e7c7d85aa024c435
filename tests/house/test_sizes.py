"""No module is longer than a reader can hold in his head."""

from __future__ import annotations

from .source import Module, matching, modules

MAX_LINES = 600

LONGER: dict[str, str] = {}
"""Module -> why it may be longer."""


def longer_modules() -> list[Module]:
    return [module for module in modules() if len(module.text.splitlines()) > MAX_LINES]


def test_no_module_is_too_long() -> None:
    allowed = {module for pattern in LONGER for module in matching(pattern)}
    found = {module.place: len(module.text.splitlines()) for module in longer_modules()}
    assert not found.keys() - {module.place for module in allowed}, f"more than {MAX_LINES} lines: {found}"


def test_the_list_names_only_long_modules() -> None:
    long = {module.place for module in longer_modules()}
    for pattern in LONGER:
        assert any(module.place in long for module in matching(pattern)), f"take {pattern} off the list"
