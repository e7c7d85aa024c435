"""Apache Kafka for the benchmarks: one broker in KRaft mode, and the jars of Spark's connector.

Maven fetches both once (needs mvn and Java >= 17), into ``$XDG_CACHE_HOME/kafka-peer``.
"""

from __future__ import annotations

import base64
import fcntl
import os
import shutil
import subprocess
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from batonmq.demo.cluster import STOP_TIMEOUT_S, ProcessFailed
from batonmq.demo.ports import free_ports

KAFKA = "4.4.0"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kafka-peer"
CONNECTOR = "spark-sql-kafka-0-10_2.13"
CONNECTOR_JARS = (CONNECTOR, "spark-token-provider-kafka-0-10_2.13", "kafka-clients", "commons-pool2")
"""What PySpark does not bring."""
START_TIMEOUT_S = 60.0
STARTED = b"Kafka Server started"
JAVA = (
    "java",
    # The options of Kafka's own start script.
    *("-Xms1g", "-Xmx1g", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"),
    *("-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent"),
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.log.kafka.server.KafkaRaftServer=info",
)


class CannotFetch(RuntimeError):
    """Maven did not fetch the jars; the text says what to do."""


@dataclass(frozen=True)
class Artifact:
    """An artifact of Maven Central."""

    group: str
    name: str
    version: str

    def dependency(self) -> str:
        return (
            f"<dependency><groupId>{self.group}</groupId><artifactId>{self.name}</artifactId>"
            f"<version>{self.version}</version></dependency>"
        )


def fetch(directory: str, artifacts: Sequence[Artifact], only: Sequence[str] = ()) -> list[Path]:
    """The jars of `artifacts` with all they need (`only`: those of these names). Raises `CannotFetch`."""
    jars = CACHE / directory
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "fetch.lock").open("w") as lock:  # one fetches, others wait
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not jars.is_dir():
            with TemporaryDirectory(dir=CACHE, prefix="fetch.") as project:
                _copy_dependencies(Path(project), artifacts, only)
                (Path(project) / "jars").rename(jars)  # the directory appears when it is whole
    return sorted(jars.glob("*.jar"))


def _copy_dependencies(project: Path, artifacts: Sequence[Artifact], only: Sequence[str]) -> None:
    if shutil.which("mvn") is None:
        raise CannotFetch("mvn (Apache Maven) is needed to fetch Kafka and Spark's connector")
    dependencies = "".join(artifact.dependency() for artifact in artifacts)
    (project / "pom.xml").write_text(
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>benchmarks</groupId><artifactId>kafka</artifactId><version>1</version>"
        f"<dependencies>{dependencies}</dependencies></project>\n"
    )
    command = ["mvn", "--quiet", "--batch-mode", "-Dstyle.color=never", "--file", str(project / "pom.xml")]
    command += ["dependency:copy-dependencies", f"-DoutputDirectory={project / 'jars'}"]
    if only:
        command.append(f"-DincludeArtifactIds={','.join(only)}")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        output = done.stdout + done.stderr
        errors = [line for line in output.splitlines() if "[ERROR]" in line]
        raise CannotFetch(errors[0] if errors else f"mvn failed with exit code {done.returncode}")


def connector_jars(spark_version: str) -> list[Path]:
    """Spark's Kafka connector of exactly this version, without what PySpark has. Raises `CannotFetch`."""
    artifact = Artifact("org.apache.spark", CONNECTOR, spark_version)
    try:
        return fetch(f"connector-{spark_version}", [artifact], CONNECTOR_JARS)
    except CannotFetch as error:
        missing = ("not find artifact", "was not found")
        if not any(words in str(error) for words in missing):
            raise
        raise CannotFetch(
            f"the Maven registry has no {CONNECTOR}:{spark_version}, the connector of this PySpark: run this "
            "in a virtual environment with a PySpark whose connector it has, e.g. pip install pyspark==4.2.0"
        ) from None


def broker_jars() -> list[Path]:
    """Kafka's broker with its dependencies, and a logger. Raises `CannotFetch`."""
    kafka = Artifact("org.apache.kafka", "kafka_2.13", KAFKA)
    return fetch(f"lib-{KAFKA}", [kafka, Artifact("org.slf4j", "slf4j-simple", "1.7.36")])


@dataclass
class KafkaBroker:
    """A context manager: one node, broker and controller, with its log below `directory`.

    Settings are Kafka's defaults but for addresses, directories and topics, which must be created.
    """

    directory: Path
    port: int = field(init=False)
    process: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        self.port, controller = free_ports(2)
        self._settings = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "log.dirs": self.directory / "kafka-logs",
            "offsets.topic.replication.factor": 1,
            "auto.create.topics.enable": "false",
        }

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self.process is not None, "Kafka was not started"
        return self.process.pid

    def __enter__(self) -> KafkaBroker:
        """Format the storage, start the broker, return when it serves. Raises `ProcessFailed`."""
        java = [*JAVA, "-cp", os.pathsep.join(str(jar) for jar in broker_jars())]
        self.directory.mkdir(parents=True, exist_ok=True)
        config, log = self.directory / "server.properties", self.directory / "kafka.log"
        config.write_text("".join(f"{key}={value}\n" for key, value in self._settings.items()))
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        tool = ["kafka.tools.StorageTool", "format", "-c", str(config), f"--cluster-id={cluster_id}"]
        with log.open("ab") as output:
            if subprocess.run([*java, *tool], stdout=output, stderr=output, check=False).returncode:
                raise self._failed(log, "did not format its storage")
            # Not a session: Linux shares the processors between sessions, not processes (autogroup).
            self.process = subprocess.Popen(
                [*java, "kafka.Kafka", str(config)], stdout=output, stderr=output, process_group=0
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        while STARTED not in log.read_bytes():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise self._failed(log, "did not come up")
            time.sleep(0.1)
        return self

    @staticmethod
    def _failed(log: Path, what: str) -> ProcessFailed:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
        return ProcessFailed(f"Kafka {what}; the end of {log}:\n{tail}")

    def stop(self) -> None:
        """SIGTERM, then SIGKILL if it does not stop in time."""
        if self.process is None:
            return
        self.process.terminate()
        try:
            self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def __exit__(self, *exc: object) -> None:
        self.stop()
