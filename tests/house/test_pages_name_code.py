"""Files that pages name exist, and functions that the pages for developers name."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from .source import ROOT, modules

FILE = re.compile(r"`([\w/]+\.py)`")
WITH_FILES = [path for path in sorted((ROOT / "docs").rglob("*.md")) if FILE.search(path.read_text())]
PAGES = ("walkthrough.md", "recipes.md", "architecture.md")


@cache
def programs() -> tuple[str, ...]:
    """``/src/batonmq/raft/core.py`` and the like."""
    return tuple(f"/{path.relative_to(ROOT).as_posix()}" for path in ROOT.glob("*/**/*.py"))


def defined() -> set[str]:
    """Every class, function, method and attribute of `src/batonmq`, by its own name."""
    found: set[str] = set()
    for module in modules():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                found.add(node.name)
            elif isinstance(node, ast.Attribute):
                found.add(node.attr)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
    return found


@pytest.mark.parametrize("page", WITH_FILES, ids=lambda page: page.name)
def test_files_exist(page: Path) -> None:
    named = set(FILE.findall(page.read_text()))
    assert sorted(name for name in named if not any(path.endswith(f"/{name}") for path in programs())) == []


@pytest.mark.parametrize("page", PAGES)
def test_methods_exist(page: str) -> None:
    text = (ROOT / "docs" / page).read_text()
    names, known = set(re.findall(r"`([A-Z]\w+)\.(\w+)`", text)), defined()
    names = {(owner, name) for owner, name in names if name not in ("py", "md", "toml")}
    assert names
    gone = [f"{owner}.{name}" for owner, name in sorted(names) if not {owner, name} <= known]
    assert gone == []
