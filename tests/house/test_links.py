"""Links of pages lead somewhere, every page is linked, and "Contents" names all sections in their order."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from .source import ROOT

PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
LONG = 150
"""A page of more lines needs a line "Contents"."""

LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^(#+) (.+)$", re.MULTILINE)
CONTENTS = re.compile(r"^Contents:(.+?)\n\n", re.MULTILINE | re.DOTALL)


@cache
def prose(page: Path) -> str:
    """The page without its examples."""
    return re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)


def anchor(heading: str) -> str:
    """As GitHub makes it."""
    shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", shown.strip().lower()).replace(" ", "-")


@cache
def anchors(page: Path) -> list[tuple[int, str]]:
    """Level and anchor of each heading."""
    return [(len(level), anchor(text)) for level, text in HEADING.findall(prose(page))]


def leads_nowhere(page: Path, link: str) -> bool:
    if link.startswith(("http://", "https://")):
        return False
    path, _, wanted = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    if not target.exists():
        return True
    return bool(wanted) and target.suffix == ".md" and wanted not in {name for _, name in anchors(target)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    assert [link for link in LINK.findall(prose(page)) if leads_nowhere(page, link)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_contents_name_all_sections_in_their_order(page: Path) -> None:
    contents = CONTENTS.search(prose(page))
    sections = [name for level, name in anchors(page) if level == 2]
    if contents is None:
        assert page.parent == ROOT or len(prose(page).splitlines()) <= LONG or len(sections) < 3, (
            "no Contents"
        )
        return
    named = [link.removeprefix("#") for link in LINK.findall(contents[1])]
    assert [name for name in named if name in sections] == sections


def test_every_page_is_linked() -> None:
    linked = {
        (page.parent / link.partition("#")[0]).resolve()
        for page in PAGES
        for link in LINK.findall(prose(page))
    }
    lonely = [page for page in PAGES if page.parent != ROOT and page.resolve() not in linked]
    assert [page.relative_to(ROOT).as_posix() for page in lonely] == []


def test_a_broken_link_is_noticed() -> None:
    page = ROOT / "README.md"
    assert leads_nowhere(page, "docs/nowhere.md") and leads_nowhere(page, "docs/raft.md#nowhere")
    assert not leads_nowhere(page, "docs/raft.md#disk") and not leads_nowhere(page, "https://example.org")
