"""Build hook: compiles the modules of the hot path with mypyc, where that is possible.

Which modules: `pyproject.toml`, `[tool.hatch.build.targets.wheel.hooks.custom]`. Without a C compiler, with
``BATONMQ_PURE=1`` in the environment, or if the compilation fails, the result is pure Python: the same
program, slower. A wheel has the compiled modules beside their sources; an editable install has them in
`src/`, where git ignores them. `batonmq/compiled.json` lists the sources they were made from;
`batonmq/_compiled.py` does not use them when one of those has changed.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zlib
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SETUP = """
from setuptools import setup
from mypyc.build import mypycify
setup(name="batonmq", packages=[], ext_modules=mypycify({arguments!r}, group_name="batonmq", multi_file=True,
      debug_level="0", target_dir="c"))
"""

FAILURE = Path(".cache", "compile.log")
"""What the compiler said when the compilation for an editable install failed; pip shows it with -v only."""


class CompileHook(BuildHookInterface[Any]):
    """Adds compiled modules to a wheel, or to `src/` for an editable install."""

    def dependencies(self) -> list[str]:
        """What the isolated build environment needs; mypy looks at the types of the libraries."""
        if self.target_name != "wheel" or not can_compile():
            return []
        return ["mypy>=1.19", "setuptools>=77", *self.metadata.core.dependencies]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        source = Path(self.root, "src")
        failure = Path(self.root, FAILURE)
        if version == "editable":
            for old in (failure, *source.rglob("*.so"), source / "batonmq" / "compiled.json"):
                old.unlink(missing_ok=True)
        modules = find_modules(source / "batonmq", self.config["compile"])
        if not can_compile():
            return
        with tempfile.TemporaryDirectory(prefix="batonmq-compile-") as folder:
            try:
                made = compile_modules(Path(folder), source, Path(self.root, "pyproject.toml"), modules)
            except subprocess.CalledProcessError as error:
                self.app.display_warning(
                    f"batonmq will be pure Python: the compilation failed\n{error.stdout}"
                )
                if version == "editable":
                    failure.parent.mkdir(exist_ok=True)
                    failure.write_text(error.stdout)
                return
            if version == "editable":
                target = source
            else:
                target = Path(tempfile.mkdtemp(prefix="batonmq-wheel-"))
                self._folder = target
            # All sources: mypyc also compiles constants of other modules into those that use them.
            package = source / "batonmq"
            sums = {str(p.relative_to(package)): zlib.crc32(p.read_bytes()) for p in package.rglob("*.py")}
            made.append(Path("batonmq", "compiled.json"))
            (Path(folder) / made[-1]).write_text(json.dumps(sums, indent=0))
            for name in made:
                (target / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(Path(folder) / name, target / name)
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        if version != "editable":
            build_data["force_include"].update({str(target / name): str(name) for name in made})

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        folder = getattr(self, "_folder", None)
        if folder is not None:
            shutil.rmtree(folder)


def can_compile() -> bool:
    """Whether there is a C compiler with Python's headers, and nobody asked for pure Python."""
    if os.environ.get("BATONMQ_PURE", "") not in ("", "0"):
        return False
    compiler = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    header = Path(sysconfig.get_path("include"), "Python.h")
    return shutil.which(compiler.split()[0]) is not None and header.exists()


def find_modules(package: Path, patterns: list[str]) -> list[Path]:
    """The files that the patterns name. A pattern that names none is an error: a module was moved."""
    found: set[Path] = set()
    for pattern in patterns:
        paths = list(package.glob(pattern))
        if not paths:
            raise ValueError(f"pyproject.toml: no module to compile is called {pattern!r}; was it moved?")
        found.update(paths)
    return sorted(found)


def type_check_arguments(config: Path, source: Path, modules: list[Path]) -> list[str]:
    """mypy's arguments. It reads the other modules for their types but reports no errors in them.

    Those may import optional libraries (OpenTelemetry, Spark), which the build environment does not have.
    """
    return [
        f"--config-file={config}",
        "--follow-imports=silent",
        "--no-warn-unused-ignores",
        *(str(path.relative_to(source)) for path in modules),
    ]


def compile_modules(folder: Path, source: Path, config: Path, modules: list[Path]) -> list[Path]:
    """Compile into `folder`; returns what was made, relative to it. Raises `CalledProcessError`."""
    shutil.copytree(
        source / "batonmq", folder / "batonmq", ignore=shutil.ignore_patterns("__pycache__", "*.so")
    )
    arguments = type_check_arguments(config, source, modules)
    (folder / "setup.py").write_text(SETUP.format(arguments=arguments))
    command = [sys.executable, "setup.py", "build_ext", "--inplace", f"-j{os.cpu_count() or 1}"]
    subprocess.run(
        command, cwd=folder, check=True, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    made = [path.relative_to(folder) for path in folder.rglob(f"*{suffix}") if "build" not in path.parts]
    if len(made) != len(modules) + 1:
        raise RuntimeError(f"{len(modules)} modules and mypyc's library became {len(made)} files")
    return made
