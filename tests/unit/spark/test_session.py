"""What executors on other machines are sent."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow

from batonmq.spark.session import package_zip


def test_the_zip_alone_is_enough_to_read(tmp_path: Path) -> None:
    """Imported with the installed packages, but without this checkout (-S: no .pth files are followed)."""
    archive = package_zip(tmp_path)
    site_packages = Path(pyarrow.__file__).parents[1]
    code = "import batonmq.spark.source as s; print(s.__file__)"
    ran = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env={"PYTHONPATH": f"{archive}:{site_packages}"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.strip() == f"{archive}/batonmq/spark/source.py"
