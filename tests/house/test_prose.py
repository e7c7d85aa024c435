"""Plain words: sentences that people read have no private idiom."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from .source import ROOT, Module

IDIOM = re.compile(
    r"\b("
    r"told(?!\s+apart)|heard"  # say who informs whom: "is notified of", "knows", "gets an answer"
    r"|(?:make|makes|making|made|begin|begins|beginning|began|begun)\s+anew"  # create again, start over
    r"|of\s+(?:its|their|his)\s+own\s+accord"  # by itself
    r"|whose\s+own"
    r"|meets?\s+(?:a\s+)?strangers?"
    r")\b",
    re.IGNORECASE,
)
TEST_NAME = re.compile(r"^ *(?:async )?def (test_\w+)", re.MULTILINE)
PAGES = ("README.md", "docs/**/*.md")
PROGRAMS = ("src/**/*.py", "tests/**/*.py", "benchmarks/**/*.py", "examples/**/*.py")


def found() -> Iterator[str]:
    """``place:line: words``: in pages, in comments and strings (docstrings, log lines) of programs, and in
    the names of tests."""
    texts = [
        (path.relative_to(ROOT).as_posix(), 1, path.read_text())
        for pattern in PAGES
        for path in sorted(ROOT.glob(pattern))
    ]
    texts += [
        (path.relative_to(ROOT).as_posix(), first, text)
        for pattern in PROGRAMS
        for path in sorted(ROOT.glob(pattern))
        if path != Path(__file__)
        for first, text in Module(path).texts()
    ]
    texts += [
        (
            path.relative_to(ROOT).as_posix(),
            text.count("\n", 0, match.start()) + 1,
            match[1].replace("_", " "),
        )
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        if path != Path(__file__)
        for text in [path.read_text()]
        for match in TEST_NAME.finditer(text)
    ]
    for place, first, text in texts:
        for match in IDIOM.finditer(text):
            number = first + text.count("\n", 0, match.start())
            yield f"{place}:{number}: {' '.join(match[0].split())}"


def test_sentences_have_no_private_idiom() -> None:
    hits = list(found())
    assert not hits, f"{len(hits)} to be said in plain words:\n" + "\n".join(hits)


def test_idiom_is_recognised() -> None:
    for sentence in (
        "Nobody is told.",
        "a topic Made anew",
        "ends of its own accord",
        "the one whose own it is",
        TEST_NAME.sub(r"\1", "def test_nobody_is_told() -> None:").replace("_", " "),
    ):
        assert IDIOM.search(sentence), sentence
    for sentence in ("two that can be told apart", "the disk is read again", "made again", "of its own"):
        assert not IDIOM.search(sentence), sentence
