"""A class of a compiled module has compiled subclasses only.

mypyc takes a class to have no subclasses but those that it compiles. Where the type is checked, as in
``except HAFrameError``, an object of another subclass is a TypeError.
"""

from __future__ import annotations

import ast
import tomllib

from .source import ROOT, Module, matching, modules


def compiled() -> dict[str, Module]:
    """The modules that hatch_build.py compiles, by dotted name."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())
    patterns = config["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]["compile"]
    return {module.name: module for pattern in patterns for module in matching(pattern)}


def native_classes(module: Module) -> set[str]:
    """Its classes, without protocols and named tuples, which mypyc leaves to Python."""
    return {
        node.name
        for node in module.tree.body
        if isinstance(node, ast.ClassDef)
        and not {ast.unparse(base).partition("[")[0] for base in node.bases} & {"Protocol", "NamedTuple"}
    }


def outside_subclasses(module: Module, native: dict[str, set[str]]) -> list[str]:
    """Classes of a module that is not compiled whose base is."""
    names = {
        alias.asname or alias.name
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ImportFrom) and node.module in native
        for alias in node.names
        if alias.name in native[node.module]
    }
    return [
        f"{module.place}: {node.name}"
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ClassDef)
        and any(isinstance(base, ast.Name) and base.id in names for base in node.bases)
    ]


def test_no_class_outside_derives_from_a_compiled_one() -> None:
    inside = compiled()
    native = {name: native_classes(module) for name, module in inside.items()}
    assert "HAFrameError" in native["batonmq.protocol.ha_frames"]
    found = [
        each
        for module in modules()
        if module.name not in inside
        for each in outside_subclasses(module, native)
    ]
    assert not found, "compile these modules as well (pyproject.toml)"
