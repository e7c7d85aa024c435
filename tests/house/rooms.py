"""The list of rooms in docs/architecture.md, between two HTML comments: one line for each directory.

    <!-- rooms -->
    - `raft/` — Raft, in one sentence. `core.py`, `log.py`, `node.py`
    - `admin/commands/` — one file for each command. `*.py`
    <!-- /rooms -->

A line names its directory below `src/batonmq/` (`./` is that itself), says what it is for, and names its
files, except `__init__.py`. `python -m tests.house.rooms` prints the list as it should be: with the purposes
of the page, and "TODO" where one is missing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatch

from .source import PACKAGE, ROOT

PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- rooms -->", "<!-- /rooms -->"
_LINE = re.compile(r"^\W*`(?P<directory>[\w./]*/)` — (?P<text>.*)$")
_SOURCES = {".py", ".j2"}  # not what is compiled from them
_FILE = re.compile(r"`([\w*.]+\.[a-z0-9]+)`")


@dataclass(frozen=True)
class Room:
    """A line of the list."""

    purpose: str
    files: tuple[str, ...]
    """Names, or patterns such as ``*.py``."""

    def names(self, file: str) -> bool:
        return any(fnmatch(file, pattern) for pattern in self.files)


def listed(page: str) -> dict[str, Room]:
    """Directory (``raft/``) -> its line. Raises `ValueError` for a page without the list, or a bad line."""
    _, begin, rest = page.partition(BEGIN)
    block, end, _ = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"no list between {BEGIN} and {END}")
    found: dict[str, Room] = {}
    for line in filter(str.strip, block.splitlines()):
        match = _LINE.match(line)
        if match is None:
            raise ValueError(f"not of the form - `directory/` — purpose `file`, …: {line}")
        text = match["text"]
        first = _FILE.search(text)
        purpose = text[: first.start()].strip() if first else text.strip()
        found[match["directory"]] = Room(purpose, tuple(_FILE.findall(text)))
    return found


def present() -> dict[str, list[str]]:
    """Directory -> its files, as they are on disk."""
    found: dict[str, list[str]] = {}
    for path in sorted(PACKAGE.rglob("*")):
        if path.suffix in _SOURCES or path.name == "py.typed":
            directory = f"{path.parent.relative_to(PACKAGE).as_posix()}/"
            names = found.setdefault(directory, [])
            if path.name != "__init__.py":
                names.append(path.name)
    return found


def differences(page: str) -> list[str]:
    """What the list lacks, and what it names that is gone."""
    rooms, files = listed(page), present()
    missing = [f"{directory} is missing" for directory in files.keys() - rooms.keys()]
    gone = [f"{directory} is gone" for directory in rooms.keys() - files.keys()]
    for directory in files.keys() & rooms.keys():
        room = rooms[directory]
        missing += [f"{directory}{name} is missing" for name in files[directory] if not room.names(name)]
        gone += [
            f"{directory}{pattern} is gone"
            for pattern in room.files
            if not any(fnmatch(name, pattern) for name in files[directory])
        ]
        if not room.purpose or room.purpose.startswith("TODO"):
            missing.append(f"the purpose of {directory} is missing")
    return sorted([*missing, *gone])


def as_it_should_be(page: str) -> str:
    """The list with every directory and file; purposes and patterns are those of the page."""
    rooms = listed(page) if BEGIN in page else {}
    lines = []
    for directory, names in sorted(present().items()):
        room = rooms.get(directory, Room("TODO.", ()))
        patterns = [each for each in room.files if "*" in each and any(fnmatch(n, each) for n in names)]
        rest = [name for name in names if not any(fnmatch(name, each) for each in patterns)]
        files = ", ".join(f"`{name}`" for name in [*patterns, *rest])
        lines.append(f"- `{directory}` — {room.purpose} {files}".rstrip())
    return "\n".join([BEGIN, *lines, END])


if __name__ == "__main__":
    print(as_it_should_be(PAGE.read_text()))
