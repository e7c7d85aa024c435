"""``batonmq spark``: what a user sees, on this machine and on a Spark cluster of separate processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from click.testing import CliRunner, Result

from batonmq.demo.ports import free_ports
from batonmq.spark.jobs.audit import HISTORY_SCHEMA
from batonmq.spark.main import spark

from .conftest import bodies

SPARK_HOME = Path(pyspark.__file__).parent
SITE_PACKAGES = SPARK_HOME.parent


def batonmq_spark(*arguments: object, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "batonmq", "spark", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **env},
    )


class Standalone:
    """Spark's own cluster manager: a master and a worker, a process each."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        port, ui, worker_ui = free_ports(3)
        self.url = f"spark://127.0.0.1:{port}"
        common = ["--host", "127.0.0.1"]
        master = [*common, "--port", str(port), "--webui-port", str(ui)]
        worker = [*common, "--webui-port", str(worker_ui), "--cores", "2", "--memory", "1g"]
        self.processes = [self._start("master.Master", *master)]
        self._wait("master.Master", "New state: ALIVE")
        self.processes.append(
            self._start("worker.Worker", *worker, "--work-dir", str(directory / "work"), self.url)
        )
        self._wait("worker.Worker", "Successfully registered with master")

    def _start(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (self.directory / f"{program}.log").open("wb") as log:
            return subprocess.Popen(
                [str(SPARK_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{program}", *arguments],
                stdout=log,
                stderr=log,
                env={**os.environ, "SPARK_HOME": str(SPARK_HOME), "SPARK_DAEMON_MEMORY": "256m"},
            )

    def _wait(self, program: str, text: str) -> None:
        log = self.directory / f"{program}.log"
        deadline = time.monotonic() + 60
        while text not in log.read_text():
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)

    def stop(self) -> None:
        for process in reversed(self.processes):
            process.terminate()
            process.wait(20)


@pytest.fixture
def standalone(session, tmp_path) -> Iterator[Standalone]:
    made = Standalone(tmp_path)
    yield made
    made.stop()


@pytest.fixture
def python_of_executors(tmp_path) -> Path:
    """A Python that has, in executors, the installed packages but not this checkout's editable install.

    The driver's machine has BatonMQ: Spark plans streams there with the same Python."""
    script = tmp_path / "python-elsewhere"
    script.write_text(
        f"""#!/bin/sh
[ -n "$SPARK_EXECUTOR_DIRS" ] || exec "{sys.executable}" "$@"
PYTHONPATH="$PYTHONPATH:{SITE_PACKAGES}" exec "{sys.executable}" -S "$@"
"""
    )
    script.chmod(0o755)
    probe = subprocess.run(
        [script, "-c", "import batonmq"],
        capture_output=True,
        text=True,
        check=False,
        env={"SPARK_EXECUTOR_DIRS": "/"},
        cwd=tmp_path,
    )
    assert "No module named 'batonmq'" in probe.stderr
    return script


@pytest.mark.timeout(240)
def test_archive_on_a_cluster_whose_machines_have_no_batonmq(
    session, topics, standalone, python_of_executors, tmp_path
):
    topic = topics.make(queues=2)
    topics.fill(topic, {0: bodies("a", 300), 1: bodies("b", 200)})
    target = tmp_path / "archive"
    command = ["archive", "-n", topics.namesrv, "-t", topic, "--to", target, "--master", standalone.url]
    command += ["--conf", "spark.driver.host=127.0.0.1", "--max-offsets", 200]
    ran = batonmq_spark(*command, PYSPARK_PYTHON=str(python_of_executors))
    assert ran.returncode == 0, ran.stderr
    assert "archived 500 messages in 3 batches" in ran.stdout
    rows = session.read.parquet(str(target))
    assert rows.count() == rows.select("queueId", "queueOffset").distinct().count() == 500
    assert any((tmp_path / "work").glob("app-*/*/stderr")), "no executor of the cluster took part"


def test_mistakes_are_one_line(session, topics):
    ran = batonmq_spark("rollup", "-n", topics.namesrv, "-t", "nobody-knows-it")
    assert ran.returncode == 1
    (said,) = [line for line in ran.stderr.splitlines() if line.startswith("Error:")]
    assert said.startswith("Error: topic 'nobody-knows-it' does not exist")
    assert "Traceback" not in ran.stderr


def test_a_directory_that_cannot_be_made_is_one_line(session, topics, tmp_path):
    topic = topics.make(queues=1)
    topics.fill(topic, {0: bodies("a", 1)})
    (tmp_path / "file").touch()
    ran = batonmq_spark("archive", "-n", topics.namesrv, "-t", topic, "--to", tmp_path / "file" / "archive")
    assert ran.returncode == 1
    (said,) = [line for line in ran.stderr.splitlines() if line.startswith("Error:")]
    assert str(tmp_path / "file") in said
    assert "Traceback" not in ran.stderr


LOG4J = """
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = of the user: %p %m%n
"""


def test_a_job_shows_its_own_lines_only_unless_the_user_configures_the_log(topics, tmp_path):
    rollup = ("rollup", "-n", topics.namesrv, "-t", topics.make(queues=1), "--master", "local[1]")

    def said(**env: str) -> list[str]:
        ran = batonmq_spark(*rollup, **env)
        assert ran.returncode == 0, ran.stderr
        # The JVM says this, before it reads any configuration, of an option of Spark's launcher.
        return [line for line in ran.stderr.splitlines() if "Using incubator modules" not in line]

    assert said() == []
    (tmp_path / "log4j2.properties").write_text(LOG4J)
    assert any(line.startswith("of the user: WARN") for line in said(SPARK_CONF_DIR=str(tmp_path)))


def test_a_job_without_noise_still_shows_errors(topics, tmp_path):
    (tmp_path / "part-0.parquet").write_text("no Parquet")
    ran = batonmq_spark("rollup", "-t", "orders", "--archive", tmp_path, "--master", "local[1]")
    assert ran.returncode == 1
    assert " ERROR Executor: " in ran.stderr and "Error: [FAILED_READ_FILE" in ran.stderr


def in_this_process(*arguments: object) -> Result:
    """A job in the session of the tests, which spares a start of Spark."""
    return CliRunner().invoke(spark, [*map(str, arguments)])


def one_error(done: Result) -> str:
    assert done.exit_code == 1 and isinstance(done.exception, SystemExit), done.exception
    (said,) = [line for line in done.stderr.splitlines() if line.startswith("Error:")]
    return said


def test_what_spark_refuses_is_one_line(session, topics, tmp_path):
    topic, target = topics.make(queues=1), topics.make(queues=1)
    topics.fill(topic, {0: bodies("a", 2)})
    archive = ("archive", "-n", topics.namesrv, "-t", topic)
    said = one_error(in_this_process(*archive, "--to", tmp_path / "a", "--every", "abc"))
    assert "'abc' to interval" in said and "SQLSTATE" not in said
    assert "empty string" in one_error(in_this_process(*archive, "--to", ""))
    assert "S3AFileSystem not found" in one_error(in_this_process(*archive, "--to", "s3a://bucket/x"))
    replay = ("replay", "-n", topics.namesrv, "-t", topic, "--to", target, "--state", tmp_path / "state")
    said = one_error(in_this_process(*replay, "--where", "cast(keys as int) > 1"))
    assert "'a0'" in said or "'a1'" in said
    (tmp_path / "text").write_text("no Parquet file")
    audit = ("audit", "-n", topics.namesrv, "-t", topic, "--history", tmp_path / "text")
    assert "text" in one_error(in_this_process(*audit))


def test_a_directory_of_several_tables_and_a_damaged_checkpoint_are_one_line(session, topics, tmp_path):
    topic = topics.make(queues=1)
    topics.fill(topic, {0: bodies("a", 2)})
    archive = ("archive", "-n", topics.namesrv, "-t", topic, "--to", tmp_path / "a")
    assert in_this_process(*archive).exit_code == 0
    session.range(1).write.parquet(str(tmp_path / "other"))
    for job in (
        ("skew", "--archive", tmp_path, "-t", topic),
        ("restore", "-n", topics.namesrv, "--archive", tmp_path, "--state", tmp_path / "state"),
        ("audit", "-n", topics.namesrv, "-t", topic, "--history", tmp_path),
    ):
        assert "name that of one table" in one_error(in_this_process(*job))
    (offsets,) = (tmp_path / "a" / "_checkpoint" / "offsets").glob("[0-9]*")
    for content, says in (
        (b"", "Incomplete log file"),
        (b"x", "[MALFORMED_LOG_FILE] Log file was malformed"),
    ):
        offsets.write_bytes(content)
        (offsets.parent / f".{offsets.name}.crc").unlink(missing_ok=True)
        said = one_error(in_this_process(*archive))
        assert said.startswith("Error: the checkpoint is damaged: Failed to read log file ") and says in said
        assert str(offsets) in said and "SQLSTATE" not in said
    offsets.write_bytes(b"v1")
    said = one_error(in_this_process(*archive))
    assert said.startswith("Error: Spark ended the stream: ") and "SQLSTATE" not in said
    assert said.endswith("if that does not help, restore its checkpoint from a backup")
    offsets.write_bytes(b'v1\n{}\n{"x":')
    assert one_error(in_this_process(*archive)).startswith(
        "Error: the checkpoint is damaged: JSONDecodeError: "
    )
    metadata = offsets.parents[1] / "metadata"
    (metadata.parent / ".metadata.crc").unlink(missing_ok=True)
    for content in (b"", b'{"id":"', b'{"a":1}'):
        metadata.write_bytes(content)
        said = one_error(in_this_process(*archive))
        assert said.startswith("Error: the checkpoint is damaged: ") and "Exception: " in said


def test_a_condition_that_cannot_be_computed_is_one_line(session, topics, tmp_path):
    topic, target = topics.make(queues=1), topics.make(queues=1)
    topics.fill(topic, {0: bodies("a", 3)})
    replay = ("replay", "-n", topics.namesrv, "-t", topic, "--to", target, "--state")
    condition = "1 / (queueOffset - 1) > 0"
    ran = batonmq_spark(*replay, tmp_path / "0", "--where", condition)
    assert ran.returncode == 1 and not ran.stdout
    lines = ran.stderr.splitlines()
    assert lines[-1].startswith(f"Error: --where {condition!r}: [DIVIDE_BY_ZERO] Division by zero.")
    assert len(lines) < 10, ran.stderr  # Spark says a little when it starts
    for wrong, says in (
        ("tagz = 'x'", "tagz"),
        ("raise_error('no such luck') is null", "no such luck"),
        ("regexp_like(keys, '[')", "Unclosed character class"),
        ("from_json(keys, 'a int', map('mode', 'FAILFAST')).a = 1", "Malformed records"),
    ):
        said = one_error(in_this_process(*replay, tmp_path / says, "--where", wrong))
        assert said.startswith(f"Error: --where {wrong!r}: ") and says in said


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--conf", "spark.sql.shuffle.partitions=many"), "many"),
        (("--master", "mars"), "JAVA_GATEWAY_EXITED"),
    ],
)
def test_a_setting_that_spark_refuses_is_one_line(topics, tmp_path, options, says):
    topic = topics.make(queues=1)
    ran = batonmq_spark("archive", "-n", topics.namesrv, "-t", topic, "--to", tmp_path / "archive", *options)
    assert ran.returncode == 1 and "Traceback" not in ran.stderr
    (said,) = [line for line in ran.stderr.splitlines() if line.startswith("Error:")]
    assert says in said


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("127.0.0.1:1", "Error: no name server answers (127.0.0.1:1: "),
        ("nowhere", "Error: name server address 'nowhere': expected host:port"),
    ],
)
def test_a_wrong_name_server_is_reported_before_spark_is_started(tmp_path, address, says):
    ran = batonmq_spark("archive", "-n", address, "-t", "t", "--to", tmp_path / "archive")
    assert ran.returncode == 1
    (line,) = ran.stderr.splitlines()  # Spark would have logged more lines
    assert line.startswith(says)
    assert not (tmp_path / "archive").exists()


def test_an_audit_needs_a_history(session, topics, tmp_path):
    """Other tables have none of its columns: nothing of them would be lost."""
    topic = topics.make(queues=1)
    topics.fill(topic, {0: bodies("k", 3)})
    session.range(3).withColumnRenamed("id", "key").write.parquet(str(tmp_path / "numbers"))
    audit = ("audit", "-n", topics.namesrv, "-t", topic, "--history", tmp_path / "numbers")
    said = one_error(in_this_process(*audit))
    assert said.endswith("numbers is not a history of sends: it has no column 'status'")


def test_audit_says_what_is_lost_and_fails(session, topics, tmp_path):
    topic = topics.make(queues=1)
    topics.fill(topic, {0: bodies("k", 3)})
    history = [(f"k{i}", "acked", "broker-a:0", i, 10 + i, 20 + i) for i in range(4)]
    session.createDataFrame(history, HISTORY_SCHEMA).write.parquet(str(tmp_path / "history"))
    ran = batonmq_spark(
        "audit", "-n", topics.namesrv, "-t", topic, "--history", tmp_path / "history", "--json"
    )
    assert ran.returncode == 1, ran.stderr
    report = json.loads(ran.stdout)
    assert (report["sent"], report["in_log"], report["lost"], report["moved"]) == (4, 3, 1, 0)
