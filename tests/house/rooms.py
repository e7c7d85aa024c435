"""The map of rooms and files in docs/architecture.md, made from the first sentences of their docstrings.

`python -m tests.house.rooms` writes it between the page's two HTML comments ``<!-- rooms -->``. A package
says what it is for in its ``__init__.py``, a module in its own docstring.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

from .source import PACKAGE, ROOT

PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- rooms -->", "<!-- /rooms -->"
IN_ONE_LINE = frozenset({"admin/commands"})
"""Packages with one file for each thing, all of one kind: their files are only named."""


class Unsaid(ValueError):
    """A package or a module has no docstring."""


def first_sentence(path: Path) -> str:
    """Of the module's docstring, without the full stop. Raises `Unsaid`."""
    text = ast.get_docstring(ast.parse(path.read_text()))
    if not text:
        raise Unsaid(f"{path.relative_to(ROOT)} has no docstring: say in one sentence what it is for")
    paragraph = " ".join(text.split("\n\n")[0].split())
    return re.split(r"(?<=[^.])\.(?= [A-Z`(]|$)", paragraph)[0]


def packages() -> list[Path]:
    """Directories with code, each before those inside it."""
    return sorted({path.parent for path in PACKAGE.rglob("*.py")})


def rendered() -> str:
    """The map, with both comments. Raises `Unsaid`."""
    lines = [BEGIN]
    for package in packages():
        place = package.relative_to(PACKAGE).as_posix()
        lines += ["", f"**`{place}/`** — {first_sentence(package / '__init__.py')}.", ""]
        files = sorted(path for path in package.glob("*.py") if path.name != "__init__.py")
        if place in IN_ONE_LINE:
            lines.append(", ".join(f"`{path.name}`" for path in files))
        else:
            lines += [f"- `{path.name}` — {first_sentence(path)}" for path in files]
    return "\n".join([*lines, "", END])


def replaced(page: str) -> str:
    """The page with the map as it is now. Raises ValueError for a page without its two comments."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"no {BEGIN} … {END}")
    return before + rendered() + after


if __name__ == "__main__":
    PAGE.write_text(replaced(PAGE.read_text()))
