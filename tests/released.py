"""The last released version of this program, from the clone's history, beside the present one."""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Released:
    version: str
    commit: str

    def unpack(self, directory: Path) -> Path:
        """Its sources; returns the directory for PYTHONPATH."""
        data = _git("archive", self.commit, "src")
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            archive.extractall(directory)
        return directory / "src"


def command(sources: Path, *arguments: str) -> tuple[str, ...]:
    """Python with these sources, uncompiled, and with the present dependencies."""
    return ("env", f"PYTHONPATH={sources}", "BATONMQ_PURE=1", sys.executable, *arguments)


@lru_cache
def last_released() -> Released:
    """The newest tag, or, without tags, the commit that gave `CHANGELOG.md` its newest version. Skips the
    test if the clone has neither: CI's may be shallow."""
    try:
        tag = _git("describe", "--tags", "--abbrev=0", "--match", "v[0-9]*").decode().strip()
        return Released(tag.removeprefix("v"), tag)
    except (OSError, subprocess.CalledProcessError):
        pass
    found = re.search(r"^## \[(\d[^]]*)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert found is not None, "CHANGELOG.md names no version"
    try:
        commits = _git("log", "--format=%H", f"-S## [{found[1]}]", "--", "CHANGELOG.md").decode().split()
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no history here ({error}): the last version is unknown")
    if not commits or _git("rev-parse", "--is-shallow-repository").strip() == b"true":
        pytest.skip(
            f"this clone has no tag, and not the commit of version {found[1]}: a shallow clone? "
            "(git fetch --unshallow --tags)"
        )
    return Released(found[1], commits[-1])


def _git(*arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True).stdout
