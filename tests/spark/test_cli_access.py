"""Jobs of `batonmq spark` on a cluster that speaks TLS only, demands certificates, and wants signed requests.

What a job leaves behind (output, logs, Spark's event log with its plans, checkpoints, ledgers, reports) is
searched for the secret. The jobs' user has the rights that docs/spark.md lists, and no others.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from batonmq import Admin, Credentials, Message
from batonmq.admin.main import admin
from batonmq.client.offsets import GroupOffsets
from batonmq.client.reader import QueueReader
from batonmq.demo.cluster import LocalCluster
from batonmq.net.tls import TlsConfig, client_context
from batonmq.protocol.bodies.common import MessageQueue
from batonmq.protocol.bodies.groups import SubscriptionGroupConfig
from batonmq.protocol.names import dead_letter_topic
from batonmq.routing.session import Session
from batonmq.sync import Producer
from tests.certificates import Authority, authority

from .conftest import BROKER, Topics, values, whole_group
from .test_cli import batonmq_spark
from .test_cli_jobs import commit

if TYPE_CHECKING:
    import ssl

    from pyspark.sql import SparkSession

SECRET = "hidden-jobs-secret"
"""Of the jobs' user."""
ROOT = Credentials("root", "root-secret")
READ, WRITE = "Sub,Get", "Pub,Get"
RIGHTS = {
    "Topic:orders": READ,
    "Topic:there": READ,
    "Topic:%DLQ%billing": READ,
    "Topic:again": WRITE,
    "Topic:restored": WRITE,
    "Topic:back": f"Create,Update,{WRITE}",
    "Topic:RMQ_SYS_TRANS_HALF_TOPIC": "Get",
    "Group:batonmq_reader": "Sub",
    "Group:billing": "Get",
    "Group:shop": "Get",
    "Group:movers": "Create,Get,Update",
}
SMALL = {"mappedFileSizeCommitLog": 16 << 20, "maxHashSlotNum": 1_000, "maxIndexNum": 5_000}
AUTH = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": '{"username":"root","password":"root-secret"}',
    "innerClientAuthenticationCredentials": '{"accessKey":"inner","secretKey":"inner-secret"}',
}
FAST = ("--master", "local[2]", "--conf", "spark.sql.shuffle.partitions=2")
ROWS = 40
pytestmark = pytest.mark.timeout(240)


@dataclass
class Secured:
    """The cluster, and what an operator needs to get in."""

    cluster: LocalCluster
    ca: Authority
    credentials: Path
    """A file such as mqadmin's tools.yml."""

    @property
    def namesrv(self) -> str:
        return self.cluster.namesrv_address

    @property
    def words(self) -> list[object]:
        certificate, key = self.ca.issue("operator")
        tls = ["--tls-trust", self.ca.certificate, "--tls-cert", certificate, "--tls-key", key]
        return ["-n", self.namesrv, "--credentials", self.credentials, *tls]

    @property
    def environment(self) -> dict[str, str]:
        """The same for those who type no options."""
        certificate, key = self.ca.issue("operator")
        file = self.ca.directory / "tls.conf"
        file.write_text(
            f"tls.client.authServer=true\ntls.client.trustCertPath={self.ca.certificate}\n"
            f"tls.client.certPath={certificate}\ntls.client.keyPath={key}\n"
        )
        return {
            "NAMESRV_ADDR": self.namesrv,
            "BATONMQ_TLS_CONFIG": str(file),
            "BATONMQ_ACCESS_KEY": "jobs",
            "BATONMQ_SECRET_KEY": SECRET,
        }

    @property
    def tls(self) -> ssl.SSLContext:
        certificate, key = self.ca.issue("operator")
        made = client_context(
            TlsConfig(enable=True, client_cert_path=str(certificate), client_key_path=str(key))
        )
        assert made is not None
        return made

    def allow_jobs(self) -> None:
        root = {"BATONMQ_ACCESS_KEY": ROOT.access_key, "BATONMQ_SECRET_KEY": ROOT.secret_key}
        words = ["-b", self.cluster.brokers[0].address, *map(str, self.words[4:])]

        def admin_does(*more: str) -> None:
            deadline = time.monotonic() + 30
            while True:
                done = CliRunner().invoke(admin, [*more, *words], env={**self.environment, **root})
                # A broker has its first user once it is master.
                if "User:root is not found" not in done.output or time.monotonic() > deadline:
                    break
            assert done.exit_code == 0, done.output

        admin_does("createUser", "-u", "jobs", "-p", SECRET)
        for resource, actions in RIGHTS.items():
            admin_does("createAcl", "-s", "User:jobs", "-r", resource, "-a", actions, "-d", "Allow")

    def make(self, topic: str) -> None:
        async def work() -> None:
            async with Admin(self.namesrv, tls=self.tls, credentials=ROOT) as admin:
                await admin.create_topic(topic, 2)

        asyncio.run(work())

    def fill(self, topic: str) -> None:
        with Producer("filler", self.namesrv, tls=self.tls, credentials=ROOT) as producer:
            for i in range(ROWS):
                message = Message(topic, b"m%d" % i, keys=f"k{i}")
                producer.send(message, queue=MessageQueue(topic, BROKER, i % 2))

    def count(self, topic: str) -> int:
        async def work() -> int:
            async with QueueReader(self.namesrv, tls=self.tls, credentials=ROOT) as reader:
                return sum([await reader.max_offset(queue) for queue in await reader.queues(topic)])

        return asyncio.run(work())

    def offset(self, group: str, topic: str, queue_id: int) -> int | None:
        async def work() -> int | None:
            session = Session(self.namesrv, tls=self.tls, credentials=ROOT)
            try:
                return await GroupOffsets(session, group).read(MessageQueue(topic, BROKER, queue_id))
            finally:
                await session.close()

        return asyncio.run(work())

    def consumed(self, group: str, topic: str, offset: int) -> None:
        async def work() -> None:
            async with Admin(self.namesrv, tls=self.tls, credentials=ROOT) as admin:
                await admin.create_group(SubscriptionGroupConfig(group_name=group))
            session = Session(self.namesrv, tls=self.tls, credentials=ROOT)
            try:
                for queue_id in range(2):
                    await GroupOffsets(session, group).commit(MessageQueue(topic, BROKER, queue_id), offset)
            finally:
                await session.close()

        asyncio.run(work())


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, session: SparkSession) -> Iterator[Secured]:
    directory = tmp_path_factory.mktemp("secured")
    ca = authority(directory / "ca")
    credentials = directory / "tools.yml"
    credentials.write_text(f"accessKey: jobs\nsecretKey: {SECRET}\n")
    cluster = LocalCluster(directory / "cluster", replicas=1, broker_settings={**SMALL, **AUTH})
    for program in cluster.programs:
        program.settings = {**program.settings, **ca.mutual(program.name)}
    with cluster:
        made = Secured(cluster, ca, credentials)
        made.allow_jobs()
        made.make("orders")
        made.fill("orders")
        yield made


class Job:
    """Runs commands that may leave files below one directory, and searches all of it for the secret."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.events = directory / "events"
        self.events.mkdir()

    def run(self, *words: object, code: int = 0, **env: str) -> subprocess.CompletedProcess[str]:
        logged = ("--conf", "spark.eventLog.enabled=true", "--conf", f"spark.eventLog.dir={self.events}")
        loud = ("--conf", "spark.log.level=INFO", "--conf", f"spark.local.dir={self.directory / 'local'}")
        # Compressed, it could not be searched.
        plain = ("--conf", "spark.eventLog.compress=false")
        done = batonmq_spark(*words, *FAST, *logged, *plain, *loud, **env)
        assert done.returncode == code, done.stdout + done.stderr
        assert SECRET not in done.stdout and SECRET not in done.stderr
        return done

    def left_no_secret(self) -> None:
        files = [path for path in self.directory.rglob("*") if path.is_file()]
        events = b"".join(path.read_bytes() for path in files if self.events in path.parents)
        assert b"SparkListenerSQLExecutionStart" in events, "the event log has no plan that could be searched"
        assert [path for path in files if SECRET.encode() in path.read_bytes()] == []


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def test_a_stream_into_files_by_the_environment_alone(
    secured: Secured, session: SparkSession, job: Job, tmp_path: Path
) -> None:
    target = tmp_path / "archive"
    done = job.run("archive", "-t", "orders", "--to", target, **secured.environment)
    assert f"archived {ROWS} messages" in done.stdout
    assert session.read.parquet(str(target)).count() == ROWS
    job.left_no_secret()

    secured.make("restored")
    words = ["restore", "--archive", target, "--state", tmp_path / "state", "--to", "restored"]
    assert f"restored {ROWS} messages" in job.run(*words, *secured.words).stdout
    assert secured.count("restored") == ROWS
    job.left_no_secret()


def test_batch_reads_with_a_report(secured: Secured, job: Job, tmp_path: Path) -> None:
    secured.consumed("billing", "orders", 5)
    done = job.run("skew", *secured.words, "-t", "orders", "--json", "--out", tmp_path / "skew")
    assert json.loads(done.stdout)["messages"] == ROWS
    words = ["lag", *secured.words, "-t", "orders", "--contents", "--json", "--out", tmp_path / "lag"]
    result = json.loads(job.run(*words).stdout)
    assert [(reader["reader"], reader["behind"]) for reader in result["readers"]] == [("billing", ROWS - 10)]
    assert sum(row["messages"] for row in result["contents"]) == ROWS - 10
    assert (tmp_path / "lag" / "report.html").exists() and (tmp_path / "skew" / "report.html").exists()
    job.left_no_secret()


def test_batch_writes_exactly_once(secured: Secured, job: Job, tmp_path: Path) -> None:
    secured.make("again")
    words = ["replay", *secured.words, "-t", "orders", "--to", "again", "--state", tmp_path / "replay"]
    assert f"replayed {ROWS} messages" in job.run(*words).stdout
    assert secured.count("again") == ROWS
    dead = dead_letter_topic("billing")
    secured.make(dead)
    assert "dead letters" in job.run("dlq", *secured.words, "-g", "billing").stdout
    job.left_no_secret()


def test_a_stream_into_an_open_cluster_and_back(
    secured: Secured, session: SparkSession, cluster: LocalCluster, topics: Topics, job: Job, tmp_path: Path
) -> None:
    """Each cluster gets its own access: the open one would refuse TLS, the other one everything else."""
    asyncio.run(whole_group(cluster))
    secured.make("there")
    secured.fill("there")
    secured.consumed("shop", "there", 5)
    words = ["mirror", *secured.words, "--to-namesrv", topics.namesrv, "-t", "there", "-g", "shop"]
    job.run(*words, "--once", "--state", tmp_path / "there")
    assert len(values(topics.read(session, "there"))) == ROWS

    back = [f"--to-{word[2:]}" if str(word).startswith("--") else word for word in secured.words[2:]]
    topics.make("back")
    topics.fill("back", {0: [b"a", b"b"], 1: [b"c"]})
    commit(topics.namesrv, "movers", "back", {0: 1, 1: 1})
    words = ["mirror", "-n", topics.namesrv, "--to-namesrv", secured.namesrv, *back]
    job.run(*words, "-t", "back", "-g", "movers", "--once", "--state", tmp_path / "back")
    assert secured.count("back") == 3
    assert secured.offset("movers", "back", 0) == 1
    job.left_no_secret()


def test_a_refusal_is_one_line_that_says_why(secured: Secured, job: Job, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.yml"
    wrong.write_text("accessKey: jobs\nsecretKey: hidden-wrong-secret\n")
    tls = secured.words[4:]
    archive = ("archive", "-n", secured.namesrv, "-t", "orders", "--to", tmp_path / "archive")
    for words, complaint in (
        ((*archive, "--credentials", wrong, *tls), "check signature failed"),
        (("skew", "-n", secured.namesrv, "-t", "orders", *tls), "username cannot be null"),
        (archive, "commands: --tls"),
    ):
        done = job.run(*words, code=1)
        (error,) = [line for line in done.stderr.splitlines() if line.startswith("Error: ")]
        assert complaint in error
        assert "hidden-wrong-secret" not in done.stdout + done.stderr
