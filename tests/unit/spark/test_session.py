"""Sessions without Spark's packages, and what executors on other machines are sent."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
import pyarrow
import pytest

from batonmq.spark.command import session_for
from batonmq.spark.session import SparkMissing, package_zip, spark_session


def test_without_spark_a_session_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    with pytest.raises(SparkMissing, match=r"pyspark\.sql.*pip install 'batonmq\[spark\]'.*make all"):
        spark_session("orders")


def test_without_spark_a_job_says_in_one_line_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    monkeypatch.setenv("JAVA_HOME", "/usr")
    with click.Context(click.Command("compact")), pytest.raises(click.ClickException) as error:
        session_for("compact", None, ())
    assert "pip install 'batonmq[spark]'" in error.value.message


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
