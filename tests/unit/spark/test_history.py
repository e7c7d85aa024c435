"""What is a history of sends, which is checked before Spark starts."""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from batonmq.spark.jobs.audit import HISTORY_SCHEMA, NoHistory, check_history
from batonmq.spark.main import spark

COLUMNS = [column.split()[0] for column in HISTORY_SCHEMA.split(",")]


def write(path: Path, *columns: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({name: ["x"] for name in columns}), path)
    return path


def test_a_file_and_a_directory_as_spark_writes_it_are_histories(tmp_path: Path) -> None:
    check_history(write(tmp_path / "history.parquet", *COLUMNS))
    directory = tmp_path / "directory"
    write(directory / "status=acked" / "part-0.parquet", *(name for name in COLUMNS if name != "status"))
    for beside in ("_SUCCESS", ".part-0.parquet.crc", "_temporary/0/half"):
        (directory / beside).parent.mkdir(parents=True, exist_ok=True)
        (directory / beside).write_text("")
    check_history(directory)


def test_what_is_not_a_history_says_why(tmp_path: Path) -> None:
    with pytest.raises(NoHistory, match="is not a history of sends: there is no Parquet file in it"):
        check_history(tmp_path)
    write(tmp_path / "part-0.parquet", *COLUMNS)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "read.me").write_text("no Parquet")
    with pytest.raises(NoHistory, match=r"is not a history of sends: notes/read.me is not a Parquet file"):
        check_history(tmp_path)
    with pytest.raises(NoHistory, match="is not a history of sends: it is not a Parquet file"):
        check_history(tmp_path / "notes" / "read.me")
    write(tmp_path / "several" / "one" / "part-0.parquet", *COLUMNS)
    write(tmp_path / "several" / "two" / "part-0.parquet", *COLUMNS)
    with pytest.raises(NoHistory, match=r"several tables, .* name that of one table"):
        check_history(tmp_path / "several")
    with pytest.raises(NoHistory, match="it has no column 'status'"):
        check_history(write(tmp_path / "other.parquet", "key"))


@pytest.mark.parametrize(
    "job", [("audit", "-t", "orders", "--archive", "a"), ("failover-report", "--log", __file__)]
)
def test_a_job_says_so_in_one_line_before_spark_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: tuple[str, ...]
) -> None:
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    done = CliRunner().invoke(spark, [*job, "--history", str(tmp_path)])
    assert (done.exit_code, done.stderr) == (
        1,
        f"Error: {tmp_path} is not a history of sends: there is no Parquet file in it\n",
    )


def test_without_pyarrow_a_job_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    done = CliRunner().invoke(spark, ["audit", "-t", "orders", "--archive", "a", "--history", str(tmp_path)])
    assert done.exit_code == 1
    assert "pyarrow.parquet" in done.stderr and "pip install 'batonmq[spark]'" in done.stderr
