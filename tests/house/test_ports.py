"""Tests choose a program's ports by `free_ports`.

A port that the system chose may be in use by an outgoing connection when the program starts.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from .source import ROOT


def test_who_lets_the_system_choose_a_port_keeps_it_in_use() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{function.name}"
        for path in (ROOT / "tests").rglob("*.py")
        for function in functions(path)
        if any(binds_to_any_port(call) for call in calls(function))
        and "listen" not in {called(call) for call in calls(function)}
    ]
    assert not found, f"use batonmq.demo.ports.free_ports: {found}"


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def calls(function: ast.AST) -> Iterator[ast.Call]:
    return (node for node in ast.walk(function) if isinstance(node, ast.Call))


def called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""


def binds_to_any_port(call: ast.Call) -> bool:
    """Whether it is ``socket.bind((host, 0))``."""
    if called(call) != "bind" or not call.args or not isinstance(call.args[0], ast.Tuple):
        return False
    last = call.args[0].elts[-1]
    return isinstance(last, ast.Constant) and last.value == 0
