"""The Python examples of README and docs compile, and import what they use of `batonmq` and `asyncio`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import batonmq

ROOT = Path(__file__).parent.parent.parent
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
OURS = {"asyncio", *batonmq.__all__}


def examples() -> Iterator[tuple[str, str]]:
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        text = page.read_text()
        for found in BLOCK.finditer(text):
            line = text.count("\n", 0, found.start()) + 1
            yield f"{page.relative_to(ROOT)}:{line}", found[1]


EXAMPLES = dict(examples())


@pytest.mark.parametrize("where", EXAMPLES)
def test_an_example_can_be_pasted(where: str) -> None:
    """`await` outside of functions is allowed, as in `python -m asyncio`."""
    code = EXAMPLES[where]
    compile(code, where, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST)
    bound: set[str] = set()
    used: set[str] = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            bound.update(alias.asname or alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.Name):
            (used if isinstance(node.ctx, ast.Load) else bound).add(node.id)
    assert not (used & OURS) - bound


def test_there_are_examples() -> None:
    assert len(EXAMPLES) > 20
