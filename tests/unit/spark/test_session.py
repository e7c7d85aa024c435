"""Sessions without Spark's packages, and what executors on other machines are sent."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import click
import pyarrow
import pytest

from batonmq.spark.command import session_for
from batonmq.spark.session import LOG_CONFIGURATION, SparkMissing, errors_only, package_zip, spark_session


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


@pytest.mark.parametrize(("before", "within"), [(None, []), ("/opt/a:/opt/b", ["/opt/a", "/opt/b"])])
def test_the_configuration_of_the_log_is_behind_the_users_class_path(
    monkeypatch: pytest.MonkeyPatch, before: str | None, within: list[str]
) -> None:
    monkeypatch.delenv("SPARK_DIST_CLASSPATH", raising=False)
    if before is not None:
        monkeypatch.setenv("SPARK_DIST_CLASSPATH", before)
    with pytest.raises(ValueError, match="no JVM"), errors_only():
        assert os.environ["SPARK_DIST_CLASSPATH"].split(":") == [*within, str(LOG_CONFIGURATION)]
        raise ValueError("no JVM")
    assert os.environ.get("SPARK_DIST_CLASSPATH") == before


def test_the_log_has_errors_and_the_main_class_no_other_level() -> None:
    """Spark reports a level of the main class that is not the root's. No other format than XML: log4j would
    find it before a file of the user's."""
    (file,) = LOG_CONFIGURATION.iterdir()
    assert file.name == "log4j2.xml"
    (loggers,) = ElementTree.parse(file).getroot().iter("Loggers")
    assert {each.get("name", each.tag): each.get("level") for each in loggers} == {
        "Root": "ERROR",
        "org.apache.spark.api.python.PythonGatewayServer": "ERROR",
    }
