"""Which modules run: compiled ones only where their sources are what was compiled."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from batonmq import _compiled
from batonmq._compiled import changed_sources

SOURCE = "LOADED = 'source'\n"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the package's beginning, with one module, and an extension of the same name that is no
    library: who loads it fails."""
    package = tmp_path / "batonmq"
    package.mkdir()
    (package / "_compiled.py").write_text(Path(_compiled.__file__).read_text())
    (package / "__init__.py").write_text("from batonmq._compiled import COMPILED as COMPILED\n")
    (package / "hot.py").write_text(SOURCE)
    (package / "hot.abi3.so").write_bytes(b"no library")
    (package / "compiled.json").write_text(json.dumps({"hot.py": zlib.crc32(SOURCE.encode())}))
    return package


def run(package: Path, program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if name != "BATONMQ_PURE"}
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=package.parent,
        env={**clean, "PYTHONPATH": str(package.parent), **environment},
        capture_output=True,
        text=True,
    )


SHOW = "import batonmq, batonmq.hot; print(batonmq.COMPILED, batonmq.hot.LOADED)"


def test_compiled_modules_are_used_where_their_sources_are_unchanged(package: Path) -> None:
    assert run(package, "import batonmq; print(batonmq.COMPILED)").stdout == "True\n"
    loaded = run(package, SHOW)
    assert loaded.returncode == 1 and "hot.abi3.so" in loaded.stderr


def test_after_a_change_of_a_source_all_runs_pure_and_a_line_says_so(package: Path) -> None:
    (package / "hot.py").write_text("LOADED = 'edited'\n")
    loaded = run(package, SHOW)
    assert loaded.stdout == "False edited\n"
    assert loaded.stderr.count("\n") == 1 and "hot.py was changed after it was compiled" in loaded.stderr


def test_a_source_that_is_gone_has_changed(package: Path) -> None:
    manifest = package / "compiled.json"
    assert changed_sources(package, manifest) == []
    (package / "hot.py").unlink()
    assert changed_sources(package, manifest) == ["hot.py"]


def test_pure_python_is_chosen_by_the_environment(package: Path) -> None:
    loaded = run(package, SHOW, BATONMQ_PURE="1")
    assert (loaded.stdout, loaded.stderr) == ("False source\n", "")
    assert run(package, "import batonmq; print(batonmq.COMPILED)", BATONMQ_PURE="0").stdout == "True\n"


def test_an_install_without_compiled_modules_is_pure(package: Path) -> None:
    (package / "compiled.json").unlink()
    (package / "hot.abi3.so").unlink()
    loaded = run(package, SHOW)
    assert (loaded.stdout, loaded.stderr) == ("False source\n", "")


def test_compiled_modules_without_their_manifest_are_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupted build leaves them."""
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "turn.so").touch()
    monkeypatch.setattr(_compiled, "PACKAGE", tmp_path)
    monkeypatch.setattr(_compiled, "MANIFEST", tmp_path / "compiled.json")
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    assert _compiled.choose() is False
    assert sys.meta_path[0] is _compiled.SourcesOnly
