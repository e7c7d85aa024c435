"""The source as the rules of the house see it: modules, what they import, and what they say to people."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "batonmq"
_TEXTS = frozenset(
    number
    for name in ("COMMENT", "STRING", "FSTRING_MIDDLE")  # the last one since Python 3.12
    if (number := getattr(tokenize, name, None)) is not None
)


@dataclass(frozen=True)
class Module:
    """One file of Python, most often of `src/batonmq`."""

    path: Path

    @property
    def place(self) -> str:
        """Path below `src/batonmq`, e.g. ``raft/core.py``."""
        return self.path.relative_to(PACKAGE).as_posix()

    @property
    def name(self) -> str:
        """Dotted, e.g. ``batonmq.raft.core``; a package by its own name."""
        parts = self.path.relative_to(PACKAGE.parent).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @cached_property
    def text(self) -> str:
        return self.path.read_text()

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.place)

    def imports(self, *, type_checking: bool) -> set[str]:
        """Names of modules and of their members that are imported when the module is.

        `type_checking`: also those below ``if TYPE_CHECKING:``. Imports inside of functions are left out.
        """
        found: set[str] = set()
        for node in _at_import(self.tree.body, type_checking):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                assert node.module is not None and not node.level, f"{self.place} imports relatively"
                found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        return found

    @cached_property
    def top_level_names(self) -> set[str]:
        """The first part of everything that is imported anywhere in the module."""
        found: set[str] = set()
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module is not None:
                found.add(node.module.partition(".")[0])
        return found

    def texts(self) -> Iterator[tuple[int, str]]:
        """Line number and text of every comment and string: docstrings, log lines and errors among them."""
        for token in tokenize.generate_tokens(io.StringIO(self.text).readline):
            if token.type in _TEXTS:
                yield token.start[0], token.string


@cache
def modules() -> tuple[Module, ...]:
    return tuple(Module(path) for path in sorted(PACKAGE.rglob("*.py")))


def matching(pattern: str) -> list[Module]:
    """Modules whose place matches, e.g. ``broker/**/acks.py``: in the room or in any room inside it."""
    paths = set(PACKAGE.glob(pattern))
    return [module for module in modules() if module.path in paths]


def _at_import(body: list[ast.stmt], type_checking: bool) -> Iterator[ast.stmt]:
    for node in body:
        yield node
        match node:
            case ast.If(test=ast.Name("TYPE_CHECKING")):
                yield from _at_import(node.body if type_checking else node.orelse, type_checking)
            case ast.If():
                yield from _at_import([*node.body, *node.orelse], type_checking)
            case ast.Try():
                handlers = [line for handler in node.handlers for line in handler.body]
                inner = [*node.body, *handlers, *node.orelse, *node.finalbody]
                yield from _at_import(inner, type_checking)
            case ast.ClassDef() | ast.With():
                yield from _at_import(node.body, type_checking)


@cache
def import_graph(*, type_checking: bool) -> dict[str, set[str]]:
    """Module -> the modules that it imports; a package only where nothing inside it is imported."""
    known = {module.name: module for module in modules()}
    graph: dict[str, set[str]] = {}
    for name, module in known.items():
        found = {each for each in module.imports(type_checking=type_checking) if each in known}
        graph[name] = {
            each
            for each in found - {name}
            if known[each].path.name != "__init__.py" or not any(o.startswith(f"{each}.") for o in found)
        }
    return graph


def reachable(graph: dict[str, set[str]], start: str) -> set[str]:
    """What is imported by importing `start`, without itself."""
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        new = graph[waiting.pop()] - seen
        seen |= new
        waiting += new
    return seen - {start}


def circles(graph: dict[str, set[str]]) -> list[set[str]]:
    """Sets of modules that all import each other, directly or not."""
    reached = {name: _closure(graph, name) for name in graph}
    found: list[set[str]] = []
    for name in sorted(graph):
        if name in reached[name] and not any(name in circle for circle in found):
            found.append({name, *(other for other in reached[name] if name in reached[other])})
    return found


def _closure(graph: dict[str, set[str]], start: str) -> set[str]:
    """`reachable`, with `start` if a circle leads back to it."""
    seen = reachable(graph, start)
    return seen | {start} if any(start in graph[each] for each in seen) else seen
