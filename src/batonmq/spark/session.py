"""A Spark session with the data sources registered, on any master."""

from __future__ import annotations

import os
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Final

import batonmq

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


LOG_CONFIGURATION: Final = Path(__file__).with_name("jvm")
"""Directory of the log's configuration, on the class path of a local session's JVM."""


class SparkMissing(ModuleNotFoundError):
    """A package that the sources need is not installed. The text says how to install it."""


def package_zip(directory: Path) -> Path:
    """This package as a zip for executors on other machines; its dependencies must be installed there."""
    root = Path(batonmq.__file__).parent
    target = directory / "batonmq.zip"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(root.rglob("*.py")):
            archive.write(path, Path("batonmq") / path.relative_to(root))
    return target


@contextmanager
def errors_only() -> Iterator[None]:
    """A JVM that starts within it logs errors only; Spark's default reports itself and harmless warnings
    until the session has its log level.

    The configuration is last on the class path, so the user's comes first: that of ``SPARK_CONF_DIR``, of
    ``--driver-class-path``, or a file that a system property names.
    """
    variable = "SPARK_DIST_CLASSPATH"  # Spark's launcher puts it behind everything else
    before = os.environ.get(variable)
    os.environ[variable] = os.pathsep.join([*([before] if before else []), str(LOG_CONFIGURATION)])
    try:
        yield
    finally:
        if before is None:
            del os.environ[variable]
        else:
            os.environ[variable] = before


def spark_session(
    app_name: str,
    *,
    master: str | None = None,
    settings: dict[str, str] | None = None,
    start_jvm: Callable[[Mapping[str, str]], None] = lambda settings: None,
) -> SparkSession:
    """A session named `app_name` on `master` (None: the master of spark-submit, or else ``local[*]``).

    `start_jvm` may start Spark's JVM with these settings; otherwise Spark does. Raises `SparkMissing`.
    """
    try:
        from pyspark.sql import SparkSession

        from batonmq.spark.source import RocketMQSource
        from batonmq.spark.store.source import RocketMQStoreSource
    except ModuleNotFoundError as error:
        raise SparkMissing(
            f"{error}; install Spark with: pip install 'batonmq[spark]', or in a checkout 'make all'",
            name=error.name,
        ) from error

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    chosen = master or ("" if "SPARK_ENV_LOADED" in os.environ else "local[*]")
    defaults = {
        "spark.app.name": app_name,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "8",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
    }
    if chosen.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        defaults |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    if chosen:
        defaults["spark.master"] = chosen
    wanted = defaults | (settings or {})
    builder = SparkSession.builder
    for key, value in wanted.items():
        builder = builder.config(key, value)
    # Elsewhere the executors' class path would name the directory too.
    with errors_only() if chosen.startswith("local") else nullcontext():
        start_jvm(wanted)
        session = builder.getOrCreate()
    if chosen and not chosen.startswith("local"):
        session.sparkContext.addPyFile(str(package_zip(Path(tempfile.mkdtemp(prefix="batonmq-")))))
    session.dataSource.register(RocketMQSource)
    session.dataSource.register(RocketMQStoreSource)
    return session
