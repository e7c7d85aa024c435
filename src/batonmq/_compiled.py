"""Tells whether this process runs the compiled modules of the hot path or pure Python.

An install has compiled modules where its build found a C compiler (`hatch_build.py`). They are not used

* with ``BATONMQ_PURE=1`` in the environment;
* when a source was changed afterwards: then all of BatonMQ runs from its sources, and a line on stderr says
  so.
"""

from __future__ import annotations

import json
import os
import sys
import zlib
from collections.abc import Sequence
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, ModuleSpec, SourceFileLoader
from pathlib import Path
from types import ModuleType

PACKAGE = Path(__file__).parent
MANIFEST = PACKAGE / "compiled.json"
"""Source file, relative to the package → CRC-32 of what was compiled. Missing in a pure install."""


class SourcesOnly:
    """A finder of `sys.meta_path` that passes over compiled modules of this package."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if path is None or not name.startswith("batonmq."):
            return None
        for folder in path:
            spec = FileFinder(folder, (SourceFileLoader, SOURCE_SUFFIXES)).find_spec(name, target)
            # Folders without __init__.py, and modules of tools, are for the ordinary finders.
            if spec is not None and spec.loader is not None:
                return spec
        return None


def changed_sources(package: Path, manifest: Path) -> list[str]:
    """Sources that differ from what was compiled, or are gone."""
    compiled: dict[str, int] = json.loads(manifest.read_bytes())
    changed = []
    for name, checksum in compiled.items():
        try:
            same = zlib.crc32((package / name).read_bytes()) == checksum
        except FileNotFoundError:
            same = False
        if not same:
            changed.append(name)
    return changed


def choose() -> bool:
    """Decide for this process, before any other module of the package is imported. True: compiled."""
    if not MANIFEST.exists():
        if any(PACKAGE.glob("**/*.so")):  # what an interrupted build left
            sys.meta_path.insert(0, SourcesOnly)
        return False
    if os.environ.get("BATONMQ_PURE", "") in ("", "0"):
        changed = changed_sources(PACKAGE, MANIFEST)
        if not changed:
            return True
        sys.stderr.write(
            f"batonmq: {changed[0]} was changed after it was compiled: running pure Python. 'make install' "
            "compiles it again; BATONMQ_PURE=1 silences this line\n"
        )
    sys.meta_path.insert(0, SourcesOnly)
    return False


COMPILED = choose()
"""Whether this process runs compiled modules."""
