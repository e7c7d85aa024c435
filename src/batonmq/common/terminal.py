"""Text on a terminal as it is: no words become emoji or colours, and nothing of it commands the terminal."""

from __future__ import annotations

import re
from typing import Final

from rich.console import Console

_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""All but tab and line feed, which bodies of messages may well have."""


def plain_console(width: int | None = None) -> Console:
    """A console that prints names and bodies as they are: rich takes ``:a:`` and ``[b]`` for its own."""
    return Console(markup=False, emoji=False, highlight=False, width=width)


def visible(text: str) -> str:
    """Control characters as escapes: whoever sends a message could else move the cursor of its reader, hide
    what was printed, or rename the window."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)
