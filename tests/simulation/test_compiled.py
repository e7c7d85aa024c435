"""The compiled Raft simulation: what is built, and when again."""

from __future__ import annotations

import ast
import json
import subprocess
from pathlib import Path

import pytest

from tests.simulation import compiled


def test_what_is_compiled_is_there_and_has_no_structs() -> None:
    """mypyc loses types of a struct's fields."""
    places = compiled.sources()
    for name in compiled.modules():
        classes = [
            node for node in ast.walk(ast.parse(places[name].read_text())) if isinstance(node, ast.ClassDef)
        ]
        bases = {ast.unparse(base) for node in classes for base in node.bases}
        assert "msgspec.Struct" not in bases, name


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only source of a build in another folder."""
    folder, source = tmp_path / "build", tmp_path / "core.py"
    source.write_text("one = 1\n")
    monkeypatch.setattr(compiled, "FOLDER", folder)
    monkeypatch.setattr(compiled, "BUILT", folder / "built.json")
    monkeypatch.setattr(compiled, "sources", lambda: {"batonmq/raft/core.py": source})
    return source


def test_only_a_changed_source_is_compiled_again(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = compiled.FOLDER
    commands: list[list[str]] = []

    def run(command: list[str], **kw: object) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        return subprocess.CompletedProcess(command, 0, "")

    monkeypatch.setattr(subprocess, "run", run)
    compiled.build()
    compiled.build()
    assert len(commands) == 1
    assert (folder / "batonmq/raft/core.py").read_text() == "one = 1\n"
    assert json.loads((folder / "batonmq/compiled.json").read_text()).keys() == {"raft/core.py"}
    source.write_text("one = 2\n")
    compiled.build()
    assert len(commands) == 2
    assert (folder / "batonmq/raft/core.py").read_text() == "one = 2\n"


@pytest.mark.usefixtures("source")
def test_a_failed_compilation_ends_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = subprocess.CompletedProcess([], 1, "core.py, line 1: error")
    monkeypatch.setattr(subprocess, "run", lambda command, **kw: failed)
    with pytest.raises(SystemExit, match="line 1: error"):
        compiled.build()
    assert not compiled.BUILT.exists()
