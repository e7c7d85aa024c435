"""A Spark session with the data sources registered, on any master."""

from __future__ import annotations

import os
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import batonmq

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
    start_jvm(wanted)
    builder = SparkSession.builder
    for key, value in wanted.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    if chosen and not chosen.startswith("local"):
        session.sparkContext.addPyFile(str(package_zip(Path(tempfile.mkdtemp(prefix="batonmq-")))))
    session.dataSource.register(RocketMQSource)
    session.dataSource.register(RocketMQStoreSource)
    return session
