"""A Spark session with the data sources registered, on any master."""

from __future__ import annotations

import os
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import batonmq

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def package_zip(directory: Path) -> Path:
    """This package as a zip for executors on other machines; its dependencies must be installed there."""
    root = Path(batonmq.__file__).parent
    target = directory / "batonmq.zip"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(root.rglob("*.py")):
            archive.write(path, Path("batonmq") / path.relative_to(root))
    return target


def spark_session(
    app_name: str, *, master: str | None = None, settings: dict[str, str] | None = None
) -> SparkSession:
    """A session named `app_name` on `master` (None: the master of spark-submit, or else ``local[*]``)."""
    from pyspark.sql import SparkSession

    from batonmq.spark.source import RocketMQSource
    from batonmq.spark.store.source import RocketMQStoreSource

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(app_name)
    chosen = master or ("" if "SPARK_ENV_LOADED" in os.environ else "local[*]")
    if chosen:
        builder = builder.master(chosen)
    defaults = {
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
    for key, value in (defaults | (settings or {})).items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    if chosen and not chosen.startswith("local"):
        session.sparkContext.addPyFile(str(package_zip(Path(tempfile.mkdtemp(prefix="batonmq-")))))
    session.dataSource.register(RocketMQSource)
    session.dataSource.register(RocketMQStoreSource)
    return session
