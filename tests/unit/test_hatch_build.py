"""The compilation finds all it needs in the build environment, which has no optional library."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tomllib
import venv
from importlib.metadata import distribution
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
CONFIG = tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.fixture(scope="module")
def hook() -> ModuleType:
    """`hatch_build.py`, with a stand-in for hatchling, which only a build environment has."""
    interface = ModuleType("hatchling.builders.hooks.plugin.interface")
    interface.BuildHookInterface = dict  # type: ignore[attr-defined]
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, interface.__name__, interface)
        spec.loader.exec_module(module)
    return module


def environment_with(requirements: list[str], folder: Path) -> Path:
    """A virtual environment that has these distributions and what they need, as links. Returns its Python."""
    venv.create(folder, with_pip=False)
    (site,) = folder.glob("lib/python*/site-packages")
    left, seen = list(requirements), set()
    while left:
        requirement = left.pop()
        name = re.split(r"[^\w.-]", requirement, maxsplit=1)[0].lower()
        if name in seen or "extra ==" in requirement:
            continue
        seen.add(name)
        found = distribution(name)
        left.extend(found.requires or ())
        for top in {
            file.parts[0] for file in found.files or () if file.parts[0] not in ("..", "__pycache__")
        }:
            (site / top).symlink_to(Path(str(found.locate_file(top))))
    return folder / "bin" / "python"


def test_types_of_the_compiled_modules_need_no_optional_library(hook: ModuleType, tmp_path: Path) -> None:
    python = environment_with(CONFIG["project"]["dependencies"], tmp_path / "venv")
    assert subprocess.run([python, "-c", "import opentelemetry"], capture_output=True).returncode
    source = ROOT / "src"
    patterns = CONFIG["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]["compile"]
    modules = hook.find_modules(source / "batonmq", patterns)
    arguments = hook.type_check_arguments(ROOT / "pyproject.toml", source, modules)
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", *arguments, f"--python-executable={python}",
         f"--cache-dir={tmp_path / 'cache'}"],
        cwd=source,
        env={"PATH": ""},
        capture_output=True,
        text=True,
    )  # fmt: skip
    assert checked.returncode == 0, checked.stdout + checked.stderr
